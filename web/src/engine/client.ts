/** The page's side of the interface: an `Engine` that sends its commands to the Worker. */

import { CommandError, type Alert, type Engine, type Reply, type Request, type View } from "./api";

export interface Connected {
  engine: Engine;
  close(): void;
}

/** Starts the Worker at `url`. `onView` receives each view, `onAlert` each reason for a notification. */
export function connect(url: string, onView: (view: View) => void, onAlert: (alert: Alert) => void): Connected {
  const worker = new Worker(url, { name: "conclave" });
  const waiting = new Map<number, { resolve(value: unknown): void; reject(error: unknown): void }>();
  let last = 0;
  worker.onmessage = ({ data }: MessageEvent<Reply>) => {
    if (data.type === "view") return onView(data.view);
    if (data.type === "alert") return onAlert(data.alert);
    const promise = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.type === "result") promise?.resolve(data.value);
    else promise?.reject(new CommandError(data.fault));
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
