/**
 * Engines of the browser chat in Node, driven by lines of JSON: `{id, op, name, ...}`, each answered by `{id, ok, value}`. What
 * is kept in IndexedDB is in the memory of this process, the keys in files of a folder.
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

/** What a command has changed is in the view by then. */
const SHOWN_MS = 60;

const [base, folder] = process.argv.slice(2) as [string, string];

/** A file of this machine in the place of one of the Origin Private File System. */
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
  calls: api.Call[];
}

const chatters = new Map<string, Chatter>();

async function start(name: string): Promise<void> {
  const chatter: Chatter = {
    view: null,
    calls: [],
    engine: new Engine({
      base,
      openVault: async () => Vault.open(name, fileAt(join(folder, `${name}.keys`))),
      onView: (view) => (chatter.view = view),
      onCall: (call) => chatter.calls.push(call),
    }),
  };
  chatters.set(name, chatter);
  await chatter.engine.start();
}

// What is wrong with the network

const realFetch = globalThis.fetch;
let isOffline = false;
let lost = 0;

globalThis.fetch = async (url, options) => {
  if (isOffline) throw new TypeError("the network is gone");
  const response = await realFetch(url, options);
  if (options?.method === "POST" && String(url).endsWith("/messages") && lost > 0) {
    lost -= 1;
    throw new TypeError("the answer is lost");
  }
  return response;
};

const operations: Record<string, (name: string, fields: any) => unknown> = {
  start: (name) => start(name),
  /** As if the tab were closed and opened. */
  async restart(name) {
    await chatters.get(name)!.engine.close();
    await start(name);
  },
  async command(name, { command, args }) {
    const value = await perform(chatters.get(name)!.engine, { id: 0, command, args });
    await sleep(SHOWN_MS); // so that the view has it
    return value;
  },
  view: (name) => chatters.get(name)!.view,
  calls: (name) => chatters.get(name)!.calls.splice(0),
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
