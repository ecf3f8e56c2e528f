/** Sends requests and reads responses: timeouts, retries, the token, the server's time. */

import { NoAnswerError, RefusedError } from "./errors";

const API = "/api/v1";
/** The header for the token. The page passes it in the URL of the Worker. */
const AUTH_HEADER = new URLSearchParams(globalThis.location?.search).get("auth_header") ?? "Authorization";
const REQUEST_MS = 60_000;
/** The server sends something every 15 seconds. */
export const STREAM_TIMEOUT_MS = 45_000;
/** Characters of an error message that are shown. */
const MAX_ERROR_TEXT = 1_000;
const MAX_RESPONSE_BYTES = 64 * 1024 * 1024;
const MAX_ATTEMPTS = 6;
const MIN_DELAY_MS = 250;
const MAX_DELAY_MS = 30_000;
/** Requests with a longer Retry-After fail at once. */
const MAX_RETRY_AFTER_SECONDS = 60;

/** A request. `isRepeatable`: the server may safely execute it twice. */
export interface RequestOptions {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  body?: object;
  query?: Record<string, string | number | boolean>;
  isRepeatable?: boolean;
}

/** Returns the milliseconds to wait after consecutive failures: exponential, with jitter. */
export const delayAfter = (failures: number): number =>
  Math.min(MAX_DELAY_MS, MIN_DELAY_MS * 2 ** Math.min(failures - 1, 20)) * (0.5 + Math.random() / 2);

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

/** `base`: the origin of the server; "" in the page. `onTime`: receives the server's time; null: the server does not know it. */
export class Transport {
  token = "";
  onTime: (seconds: number | null) => void = () => undefined;
  private readonly closing = new AbortController();

  constructor(readonly base: string) {}

  /** Aborts all pending requests. */
  close(): void {
    this.closing.abort();
  }

  /** Sends a request, with retries, and returns the response. Throws RefusedError and NoAnswerError. */
  async request<T>(options: RequestOptions): Promise<T> {
    for (let failures = 1; ; failures++) {
      try {
        return await this.once<T>(options);
      } catch (error) {
        const wait = retryDelay(error, failures, options.isRepeatable ?? options.method === "GET");
        if (wait === null || this.closing.signal.aborted) throw error;
        await sleep(wait, this.closing.signal);
      }
    }
  }

  /** Opens the stream of events. */
  async open(path: string, signal: AbortSignal): Promise<Response> {
    const headers = { ...this.headers(), Accept: "text/event-stream" };
    const response = await this.fetch(`${this.base}${API}${path}`, { headers, signal });
    if (!response.ok) throw await errorOf(response);
    this.reportTime(response);
    return response;
  }

  private async once<T>({ method, path, body, query }: RequestOptions): Promise<T> {
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
    if (!response.ok) throw await errorOf(response);
    this.reportTime(response);
    if (response.status === 204) return undefined as T;
    return (await readJson(response, signal)) as T;
  }

  private async fetch(url: string, options: RequestInit): Promise<Response> {
    try {
      return await fetch(url, { ...options, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
    } catch (error) {
      throw new NoAnswerError(`no response from the server: ${errorText(error)}`);
    }
  }

  private headers(): Record<string, string> {
    if (!this.token) return {};
    return { [AUTH_HEADER]: AUTH_HEADER === "Authorization" ? `Bearer ${this.token}` : this.token };
  }

  private reportTime({ headers }: Response): void {
    if (headers.has("X-Clock-In-Doubt")) return this.onTime(null); // any Date header is then from a proxy
    const date = Date.parse(headers.get("Date") ?? "");
    this.onTime(Number.isNaN(date) ? null : Math.floor(date / 1000));
  }
}

function retryDelay(error: unknown, failures: number, isRepeatable: boolean): number | null {
  if (failures >= MAX_ATTEMPTS) return null;
  const wait = delayAfter(failures);
  if (error instanceof RefusedError && error.isBusy) {
    return error.retryAfter <= MAX_RETRY_AFTER_SECONDS ? Math.max(wait, error.retryAfter * 1000) : null;
  }
  const isLost = error instanceof NoAnswerError || (error instanceof RefusedError && [502, 504].includes(error.status));
  return isLost && isRepeatable ? wait : null;
}

/** Reads the JSON of a response. */
async function readJson(response: Response, signal?: AbortSignal): Promise<unknown> {
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
      if (bytes > MAX_RESPONSE_BYTES) throw new Error("it is too large");
      text += decoder.decode(value, { stream: true });
    }
  } catch (error) {
    throw new NoAnswerError(`cannot read the server's response: ${errorText(error)}`);
  }
}

async function errorOf(response: Response): Promise<Error> {
  const after = Number(response.headers.get("Retry-After") ?? "0") || 0;
  try {
    const body = (await readJson(response)) as { message?: string; error_code?: number; errors?: Record<string, string[]> };
    const text = String(body.message ?? "").slice(0, MAX_ERROR_TEXT);
    return new RefusedError(response.status, Number(body.error_code ?? 0), text, body.errors ?? {}, after);
  } catch {
    return new RefusedError(response.status, 0, `the server is not available (status ${response.status})`, {}, after);
  }
}

const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error));
