/** Conversions between bytes and text. */

import type { Id } from "./api";

/** Bytes in memory that no other thread shares. */
export type Bytes = Uint8Array<ArrayBuffer>;

export const utf8 = (text: string): Bytes => new TextEncoder().encode(text);

/** Throws TypeError for invalid UTF-8. */
export const fromUtf8 = (bytes: Uint8Array): string =>
  new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);

export const hex = (bytes: Uint8Array): string => Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");

/** Throws RangeError for text that is not hexadecimal. */
export function fromHex(text: string): Bytes {
  if (!/^([0-9a-f]{2})*$/i.test(text)) throw new RangeError("not hexadecimal");
  return Uint8Array.from(text.match(/../g) ?? [], (each) => Number.parseInt(each, 16));
}

const CHUNK = 0x8000;

export function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += CHUNK) binary += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  return btoa(binary);
}

/** Throws DOMException for invalid base64. */
export const fromBase64 = (text: string): Bytes => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));

export function equal(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((each, at) => each === other[at]);
}

export function concat(...parts: Uint8Array[]): Bytes {
  const all = new Uint8Array(parts.reduce((sum, each) => sum + each.length, 0));
  let at = 0;
  for (const each of parts) {
    all.set(each, at);
    at += each.length;
  }
  return all;
}

export const random = (length: number): Bytes => crypto.getRandomValues(new Uint8Array(length));

export async function sha256(bytes: Uint8Array): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Bytes));
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export const isId = (text: unknown): text is Id => typeof text === "string" && UUID.test(text);

export const idBytes = (id: Id): Bytes => fromHex(id.replaceAll("-", ""));

/** The UUID of 16 bytes. */
export function idOf(bytes: Uint8Array): Id {
  const digits = hex(bytes);
  return [8, 12, 16, 20, 32].map((end, at) => digits.slice([0, 8, 12, 16, 20][at], end)).join("-");
}
