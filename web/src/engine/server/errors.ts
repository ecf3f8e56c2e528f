/** Errors of requests, and their form for the page. */

import type { Fault } from "../api";
import { EncryptionError } from "../encryption/errors";
import { StorageError } from "../store/vault";

/** The error codes of the protocol that the engine handles. */
export const Code = {
  SESSION_OVER: 202,
  WRONG_PASSWORD: 203,
  NOT_FOUND: 300,
  CONFLICT: 301,
  FORBIDDEN: 302,
  NOT_MEMBER: 400,
} as const;

/** No valid response: the request may have been executed. */
export class NoAnswerError extends Error {}

/** The server has rejected a request. `retryAfter`: seconds to wait; 0: not specified. */
export class RefusedError extends Error {
  constructor(
    readonly status: number,
    readonly code: number,
    text: string,
    readonly fields: Readonly<Record<string, readonly string[]>> = {},
    readonly retryAfter = 0,
  ) {
    super(text);
  }

  get isBusy(): boolean {
    return this.status === 429 || this.status === 503;
  }

  get isNotMember(): boolean {
    return this.code === Code.NOT_MEMBER && this.status === 401;
  }

  get isSessionOver(): boolean {
    return this.code === Code.SESSION_OVER;
  }

  /** The same request would be rejected again. */
  get isFinal(): boolean {
    return this.status < 500 && !this.isBusy && !this.isSessionOver;
  }
}

export const isSessionOver = (error: unknown): boolean => error instanceof RefusedError && error.isSessionOver;

export const isNotMember = (error: unknown): boolean => error instanceof RefusedError && error.isNotMember;

export const hasCode = (error: unknown, code: number): boolean => error instanceof RefusedError && error.code === code;

/** Converts any error to a fault for the page. */
export function faultOf(error: unknown): Fault {
  if (error instanceof RefusedError) {
    const kinds: [boolean, Fault["kind"]][] = [
      [error.code === Code.SESSION_OVER || error.code === Code.WRONG_PASSWORD, "credentials"],
      [error.isBusy, "busy"],
      [error.code === Code.CONFLICT, "conflict"],
      [error.code === Code.FORBIDDEN || error.status === 403, "forbidden"],
      [error.code === Code.NOT_FOUND, "missing"],
      [error.status === 400, "invalid"],
    ];
    const kind = kinds.find(([applies]) => applies)?.[1] ?? "unspecified";
    return { kind, text: error.message, fields: error.fields };
  }
  if (error instanceof NoAnswerError) return { kind: "offline", text: error.message, fields: {} };
  const text = error instanceof Error ? error.message : String(error);
  if (error instanceof StorageError) return { kind: "storage", text: `this browser cannot store data: ${text}`, fields: {} };
  return { kind: error instanceof EncryptionError ? "encryption" : "unspecified", text, fields: {} };
}
