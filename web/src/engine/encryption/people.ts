/** Whose key is which: the first one is trusted and remembered, another one is told. */

import type { Id, Key } from "../api";
import { hex } from "../bytes";
import { fingerprint } from "../mls/suite";
import type { Member } from "../mls/group";

export type Known = Record<Id, Key>;

const fingerprints = new Map<string, string>();

/** The fingerprint of a member's key: those of a large group are looked at with each message. */
export async function fingerprintOf(member: Member): Promise<string> {
  const key = hex(member.signatureKey);
  let found = fingerprints.get(key);
  if (!found) {
    found = await fingerprint(member.signatureKey);
    if (fingerprints.size >= 8_192) fingerprints.clear();
    fingerprints.set(key, found);
  }
  return found;
}

/**
 * What is known of the key that somebody has in a group; it may be another one than in other groups. A key that was judged
 * is good where it is, and nowhere else.
 */
export function keyOf(known: Known, userId: Id, seen: string): Key {
  const former = known[userId];
  if (!former) return { fingerprint: seen, trust: "unknown", former: "", wasVerified: false };
  if (former.fingerprint === seen) return former;
  return { fingerprint: seen, trust: "changed", former: former.fingerprint, wasVerified: wasVerified(former) };
}

/** Remembers a key; returns it if it is another one than before. */
export function meet(known: Known, userId: Id, seen: string): Key | null {
  if (known[userId]?.fingerprint === seen) return null;
  const key = keyOf(known, userId, seen);
  known[userId] = key;
  return key.trust === "changed" ? key : null;
}

const wasVerified = (key: Key): boolean => key.trust === "verified" || (key.trust === "changed" && key.wasVerified);
