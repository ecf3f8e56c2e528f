/** Reads the server-sent events by `fetch`, since EventSource cannot send a token. */

import { NoAnswerError } from "./errors";
import { STREAM_TIMEOUT_MS, type Transport } from "./transport";
import type { ServerEvent } from "./wire";

const MAX_LINE = 131_072;

/** Yields events until the stream ends. Calls `onOpen` when it is open. Throws NoAnswerError and RefusedError. */
export async function* listen(transport: Transport, onOpen: () => void, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  const stop = new AbortController();
  signal.addEventListener("abort", () => stop.abort());
  let timer = setTimeout(() => stop.abort(), STREAM_TIMEOUT_MS);
  try {
    const response = await transport.open("/events?format=json", stop.signal);
    onOpen();
    let rest = "";
    let name = "";
    let data = "";
    const decoder = new TextDecoder();
    const reader = response.body!.getReader();
    // Some runtimes do not abort the body once the request itself is done.
    stop.signal.addEventListener("abort", () => void reader.cancel().catch(() => undefined));
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), STREAM_TIMEOUT_MS);
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r?\n/);
      rest = lines.pop()!;
      if (rest.length > MAX_LINE) throw new NoAnswerError("malformed event from the server");
      for (const line of lines) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data = line.slice(6);
        else if (line === "" && data) {
          const event = eventOf(name, data);
          [name, data] = ["", ""];
          if (event) yield event;
        }
      }
    }
  } catch (error) {
    if (error instanceof DOMException || error instanceof TypeError) throw new NoAnswerError("connection lost");
    throw error;
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

function eventOf(name: string, data: string): ServerEvent | null {
  if (name === "lagged") return { name, data: {} };
  try {
    const fields: unknown = JSON.parse(data);
    return fields && typeof fields === "object" ? { name, data: fields as Record<string, unknown> } : null;
  } catch {
    throw new NoAnswerError("malformed event from the server");
  }
}
