/** The known keys of users: the first key is trusted, and a change is reported. */

import type { Id, Key } from "../api";
import { hex } from "../bytes";
import { fingerprint } from "../mls/suite";
import type { Member } from "../mls/group";

export type KnownKeys = Record<Id, Key>;

const fingerprints = new Map<string, string>();

/** Returns the fingerprint of a member's key. Cached, since it is needed for all members with each message. */
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
 * Returns the state of the key that a user has in a group, which may differ from the key in other groups. The trust that
 * the user has set applies only to that key.
 */
export function keyOf(known: KnownKeys, userId: Id, seen: string): Key {
  const former = known[userId];
  if (!former) return { fingerprint: seen, trust: "unknown", former: "", wasVerified: false };
  if (former.fingerprint === seen) return former;
  return { fingerprint: seen, trust: "changed", former: former.fingerprint, wasVerified: wasVerified(former) };
}

/** Records a key; returns it if it has changed. */
export function recordKey(known: KnownKeys, userId: Id, seen: string): Key | null {
  if (known[userId]?.fingerprint === seen) return null;
  const key = keyOf(known, userId, seen);
  known[userId] = key;
  return key.trust === "changed" ? key : null;
}

const wasVerified = (key: Key): boolean => key.trust === "verified" || (key.trust === "changed" && key.wasVerified);
