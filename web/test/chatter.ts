/**
 * Engines of the browser chat in Node, driven by lines of JSON: `{id, op, name, ...}`, with the responses `{id, ok, value}`.
 * IndexedDB is in memory; the keys are in files of a folder.
 */

import "fake-indexeddb/auto";
import { closeSync, fstatSync, fsyncSync, ftruncateSync, openSync, readSync, writeSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type * as api from "../src/engine/api";
import { Engine, perform } from "../src/engine/engine";
import { faultOf } from "../src/engine/server/errors";
import { sleep } from "../src/engine/server/transport";
import type { KeyFile } from "../src/engine/store/slots";
import { Vault } from "../src/engine/store/vault";

/** After this time the view contains the effect of a command. */
const VIEW_DELAY_MS = 60;

const [base, folder] = process.argv.slice(2) as [string, string];

/** A file on the disk instead of one in the Origin Private File System. */
function fileAt(path: string): KeyFile {
  const file = openSync(path, openFlags(path));
  return {
    getSize: () => fstatSync(file).size,
    read: (buffer, { at }) => readSync(file, buffer, 0, buffer.length, at),
    write: (buffer, { at }) => writeSync(file, buffer, 0, buffer.length, at),
    flush: () => fsyncSync(file),
    truncate: (size) => ftruncateSync(file, size),
    close: () => closeSync(file),
  };
}

function openFlags(path: string): string {
  closeSync(openSync(path, "a"));
  return "r+";
}

interface Chatter {
  engine: Engine;
  view: api.View | null;
  alerts: api.Alert[];
}

const chatters = new Map<string, Chatter>();

async function start(name: string): Promise<void> {
  const chatter: Chatter = {
    view: null,
    alerts: [],
    engine: new Engine({
      base,
      openVault: async () => Vault.open(name, fileAt(join(folder, `${name}.keys`))),
      onView: (view) => (chatter.view = view),
      onAlert: (alert) => chatter.alerts.push(alert),
    }),
  };
  chatters.set(name, chatter);
  await chatter.engine.start();
}

// Network faults

const realFetch = globalThis.fetch;
let isOffline = false;
let lost = 0;

globalThis.fetch = async (url, options) => {
  if (isOffline) throw new TypeError("the network is gone");
  const response = await realFetch(url, options);
  if (options?.method === "POST" && String(url).endsWith("/messages") && lost > 0) {
    lost -= 1;
    throw new TypeError("the response is lost");
  }
  return response;
};

const operations: Record<string, (name: string, fields: any) => unknown> = {
  start: (name) => start(name),
  /** Closes and reopens the tab. */
  async restart(name) {
    await chatters.get(name)!.engine.close();
    await start(name);
  },
  async command(name, { command, args }) {
    const value = await perform(chatters.get(name)!.engine, { id: 0, command, args });
    await sleep(VIEW_DELAY_MS);
    return value;
  },
  view: (name) => chatters.get(name)!.view,
  alerts: (name) => chatters.get(name)!.alerts.splice(0),
  network: (_, fields) => void (isOffline = fields.isOffline),
  loseAnswers: (_, fields) => void (lost = fields.count),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, op, name, ...fields } = JSON.parse(line);
  void (async () => {
    let answer: object;
    try {
      answer = { ok: true, value: (await operations[op]!(name, fields)) ?? null };
    } catch (error) {
      answer = { ok: false, fault: faultOf(error), stack: error instanceof Error ? error.stack : "" };
    }
    process.stdout.write(`${JSON.stringify({ id, ...answer })}\n`);
  })();
}
process.exit(0);
