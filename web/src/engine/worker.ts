/** The Worker: takes commands of the page, and pushes views and calls to it. One tab at a time has the account. */

import type { Reply, Request } from "./api";
import { Engine, perform } from "./engine";
import { faultOf } from "./server/errors";
import { openKeyFile } from "./store/slots";
import { Vault } from "./store/vault";

const LOCK = "conclave";
const NAME = "conclave";
const KEY_FILE = "conclave-keys";

const reply = (message: Reply): void => postMessage(message);

const engine = new Engine({
  base: "",
  openVault: async () => Vault.open(NAME, await openKeyFile(KEY_FILE)),
  onView: (view) => reply({ type: "view", view }),
  onCall: (call) => reply({ type: "call", call }),
});

onmessage = async ({ data }: MessageEvent<Request>) => {
  const { id } = data;
  try {
    reply({ type: "answer", id, value: await perform(engine, data) });
  } catch (error) {
    reply({ type: "fault", id, fault: faultOf(error) });
  }
};

/** Holds the lock as long as the Worker lives. */
const hold = async (): Promise<never> => {
  await engine.start();
  return new Promise<never>(() => undefined);
};

void (async () => {
  if (!isSecureContext) return engine.cannotRun("a browser encrypts only on a page with HTTPS, or on localhost");
  await navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => (lock ? hold() : engine.isTaken()));
  await navigator.locks.request(LOCK, hold); // the other tab is closed
})();
