/** Sends requests and reads their answers: time-outs, repeats, the token, the server's time. */

import { NoAnswerError, RefusedError } from "./errors";

const API = "/api/v1";
/** In which header the server wants the token. The page says it in the address of the Worker. */
const AUTH_HEADER = new URLSearchParams(globalThis.location?.search).get("auth_header") ?? "Authorization";
const REQUEST_MS = 60_000;
/** A stream on which nothing comes for 45 seconds is dead: the server writes something every 15. */
export const QUIET_MS = 45_000;
/** Characters of the text of an error that are shown. */
const MOST_TOLD = 1_000;
/** An answer has at most so many bytes. */
const MOST_BYTES = 64 * 1024 * 1024;
const TRIES = 6;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 30_000;
/** A server that asks to come back later than this is not waited for, in seconds. */
const PATIENCE = 60;

/** A request. `isRepeatable`: it does no harm if the server does it twice. */
export interface Call {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  body?: object;
  query?: Record<string, string | number | boolean>;
  isRepeatable?: boolean;
}

/** Milliseconds to wait after so many failures in a row: longer each time, by chance. */
export const delayAfter = (failures: number): number =>
  Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(failures - 1, 20)) * (0.5 + Math.random() / 2);

export const sleep = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = setTimeout(done, ms);
    function done(): void {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
    signal?.addEventListener("abort", done);
  });

/** `base`: the origin of the server; "" in the page. `onTime`: hears the server's time; null: it does not know. */
export class Transport {
  token = "";
  onTime: (seconds: number | null) => void = () => undefined;
  private readonly closing = new AbortController();

  constructor(readonly base: string) {}

  /** Breaks off what is under way. */
  close(): void {
    this.closing.abort();
  }

  /** Sends a request, again where that may help, and returns its answer. Throws RefusedError and NoAnswerError. */
  async ask<T>(call: Call): Promise<T> {
    for (let failures = 1; ; failures++) {
      try {
        return await this.once<T>(call);
      } catch (error) {
        const wait = waitAfter(error, failures, call.isRepeatable ?? call.method === "GET");
        if (wait === null || this.closing.signal.aborted) throw error;
        await sleep(wait, this.closing.signal);
      }
    }
  }

  /** Opens the stream of events. */
  async open(path: string, signal: AbortSignal): Promise<Response> {
    const headers = { ...this.headers(), Accept: "text/event-stream" };
    const response = await this.fetch(`${this.base}${API}${path}`, { headers, signal });
    if (!response.ok) throw await refusal(response);
    this.tellTime(response);
    return response;
  }

  private async once<T>({ method, path, body, query }: Call): Promise<T> {
    const text = new URLSearchParams(Object.entries(query ?? {}).map(([name, each]) => [name, String(each)])).toString();
    const headers: Record<string, string> = { ...this.headers(), Accept: "application/json" };
    if (body) headers["Content-Type"] = "application/json";
    const signal = AbortSignal.any([AbortSignal.timeout(REQUEST_MS), this.closing.signal]);
    const response = await this.fetch(`${this.base}${API}${path}${text && `?${text}`}`, {
      method,
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal,
    });
    if (!response.ok) throw await refusal(response);
    this.tellTime(response);
    if (response.status === 204) return undefined as T;
    return (await read(response, signal)) as T;
  }

  private async fetch(url: string, options: RequestInit): Promise<Response> {
    try {
      return await fetch(url, { ...options, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
    } catch (error) {
      throw new NoAnswerError(`no answer from the server: ${told(error)}`);
    }
  }

  private headers(): Record<string, string> {
    if (!this.token) return {};
    return { [AUTH_HEADER]: AUTH_HEADER === "Authorization" ? `Bearer ${this.token}` : this.token };
  }

  private tellTime({ headers }: Response): void {
    if (headers.has("X-Clock-In-Doubt")) return this.onTime(null); // a Date that comes all the same is a proxy's
    const date = Date.parse(headers.get("Date") ?? "");
    this.onTime(Number.isNaN(date) ? null : Math.floor(date / 1000));
  }
}

function waitAfter(error: unknown, failures: number, isRepeatable: boolean): number | null {
  if (failures >= TRIES) return null;
  const wait = delayAfter(failures);
  if (error instanceof RefusedError && error.isBusy) {
    return error.retryAfter <= PATIENCE ? Math.max(wait, error.retryAfter * 1000) : null;
  }
  const isLost = error instanceof NoAnswerError || (error instanceof RefusedError && [502, 504].includes(error.status));
  return isLost && isRepeatable ? wait : null;
}

/** The JSON of an answer of at most MOST_BYTES. */
async function read(response: Response, signal?: AbortSignal): Promise<unknown> {
  try {
    const decoder = new TextDecoder();
    const reader = response.body!.getReader();
    signal?.addEventListener("abort", () => void reader.cancel().catch(() => undefined));
    let text = "";
    let bytes = 0;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return JSON.parse(text + decoder.decode());
      bytes += value.length;
      if (bytes > MOST_BYTES) throw new Error("it is longer than any of this protocol");
      text += decoder.decode(value, { stream: true });
    }
  } catch (error) {
    throw new NoAnswerError(`the answer of the server cannot be read: ${told(error)}`);
  }
}

async function refusal(response: Response): Promise<Error> {
  const after = Number(response.headers.get("Retry-After") ?? "0") || 0;
  try {
    const body = (await read(response)) as { message?: string; error_code?: number; errors?: Record<string, string[]> };
    const text = String(body.message ?? "").slice(0, MOST_TOLD);
    return new RefusedError(response.status, Number(body.error_code ?? 0), text, body.errors ?? {}, after);
  } catch {
    return new RefusedError(response.status, 0, `the server is away (status ${response.status})`, {}, after);
  }
}

const told = (error: unknown): string => (error instanceof Error ? error.message : String(error));
