/** The Worker: executes the commands of the page, and pushes views and alerts. Only one tab at a time uses the account. */

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
  onAlert: (alert) => reply({ type: "alert", alert }),
});

onmessage = async ({ data }: MessageEvent<Request>) => {
  const { id } = data;
  try {
    reply({ type: "result", id, value: await perform(engine, data) });
  } catch (error) {
    reply({ type: "fault", id, fault: faultOf(error) });
  }
};

/** Holds the lock until the Worker ends. */
const runEngine = async (): Promise<never> => {
  await engine.start();
  return new Promise<never>(() => undefined);
};

void (async () => {
  if (!isSecureContext) return engine.showUnsupported("Encryption needs HTTPS, or localhost.");
  await navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => (lock ? runEngine() : engine.showTaken()));
  await navigator.locks.request(LOCK, runEngine); // the other tab is closed
})();
