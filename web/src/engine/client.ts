/** The page's end of the seam: an `Engine` whose commands go to the Worker. */

import { Failed, type Call, type Engine, type Reply, type Request, type View } from "./api";

export interface Connected {
  engine: Engine;
  close(): void;
}

/** Starts the Worker at `url`. `onView` gets each view, `onCall` each reason to call the user. */
export function connect(url: string, onView: (view: View) => void, onCall: (call: Call) => void): Connected {
  const worker = new Worker(url, { name: "conclave" });
  const waiting = new Map<number, { resolve(value: unknown): void; reject(error: unknown): void }>();
  let last = 0;
  worker.onmessage = ({ data }: MessageEvent<Reply>) => {
    if (data.type === "view") return onView(data.view);
    if (data.type === "call") return onCall(data.call);
    const promise = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.type === "answer") promise?.resolve(data.value);
    else promise?.reject(new Failed(data.fault));
  };
  const engine = new Proxy({} as Engine, {
    get:
      (_, command) =>
      (...args: unknown[]) =>
        new Promise((resolve, reject) => {
          const request: Request = { id: ++last, command: command as keyof Engine, args };
          waiting.set(request.id, { resolve, reject });
          worker.postMessage(request);
        }),
  });
  return { engine, close: () => worker.terminate() };
}
