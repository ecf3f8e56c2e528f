/** The code that two users compare to verify their keys. */

import type { Code } from "../api";
import { concat, fromHex, hex, utf8 } from "../bytes";
import { WORDS } from "./words";

/** Iterated hashing makes it expensive to search for keys with the same code. */
const ROUNDS = 5_200;
const LABEL = utf8("Conclave comparison code 1");
const FINGERPRINT_BYTES = 32;

/** Returns the code of two fingerprints, in either order. Throws RangeError for an invalid fingerprint. */
export async function comparisonCode(one: string, other: string): Promise<Code> {
  const pair = [one.toLowerCase(), other.toLowerCase()].sort().map((each) => fromHex(each)) as [Uint8Array, Uint8Array];
  if (pair.some((each) => each.length !== FINGERPRINT_BYTES)) throw new RangeError("a fingerprint has 64 hexadecimal digits");
  let value = concat(LABEL, ...pair);
  for (let round = 0; round < ROUNDS; round++) {
    value = new Uint8Array(await crypto.subtle.digest("SHA-512", concat(value, ...pair)));
  }
  const digits = (BigInt(`0x${hex(value.subarray(0, 32))}`) % 10n ** 30n).toString().padStart(30, "0");
  return {
    digits: digits.match(/.{5}/g)!,
    words: Array.from(value.subarray(32, 44), (each) => WORDS[each]!),
  };
}
