/** Serializes values: JSON, followed by the contents of its `Uint8Array`s. */

import { concat, fromUtf8, utf8, type Bytes } from "../bytes";

const MARK = "\u0000bytes";

/** `value`: anything that JSON can represent, and `Uint8Array`s. */
export function pack(value: unknown): Bytes {
  const parts: Uint8Array[] = [];
  let at = 0;
  const text = JSON.stringify(value, (_, each: unknown) => {
    if (!(each instanceof Uint8Array)) return each;
    parts.push(each);
    at += each.length;
    return { [MARK]: [at - each.length, each.length] };
  });
  const head = utf8(text);
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, head.length);
  return concat(length, head, ...parts);
}

export function unpack(bytes: Uint8Array): unknown {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
  const body = 4 + length;
  return JSON.parse(fromUtf8(bytes.subarray(4, body)), (_, each: unknown) => {
    const place = each && typeof each === "object" ? (each as Record<string, [number, number]>)[MARK] : undefined;
    return place ? bytes.slice(body + place[0], body + place[0] + place[1]) : each;
  });
}
