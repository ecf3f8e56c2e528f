/** Finds what was said and is here. Nothing of a search is kept. */

import type { Found, Id } from "./api";
import type { Entry } from "./history";
import { nameOf, type Parts } from "./view";

const MOST_FOUND = 100;
const READ_AT_ONCE = 500;

/** The newest messages in which all words are. `groupId`: only there. */
export async function search(parts: Parts, wanted: string, groupId?: Id): Promise<Found[]> {
  const words = wordsOf(wanted);
  if (words.length === 0) return [];
  const found: Found[] = [];
  for (const each of groupId ? [groupId] : parts.history.ids()) found.push(...(await searchGroup(parts, each, words)));
  return found.sort((one, other) => other.createdAt - one.createdAt).slice(0, MOST_FOUND);
}

async function searchGroup(parts: Parts, groupId: Id, words: readonly string[]): Promise<Found[]> {
  const { history, userId } = parts;
  const here = history.group(groupId);
  // What destroys itself and was not seen is not found: its timer would have to begin.
  const isFindable = (each: Entry): boolean =>
    each.isReadable && !(each.selfDestructSeconds > 0 && here.isUnread(each, userId));
  const all = history.shown(groupId).filter(isFindable).reverse();
  const found: Found[] = [];
  for (let at = 0; at < all.length && found.length < MOST_FOUND; at += READ_AT_ONCE) {
    const some = all.slice(at, at + READ_AT_ONCE);
    const texts = await history.texts(groupId, some);
    for (const [place, { number, senderId, createdAt }] of some.entries()) {
      const text = texts[place] ?? "";
      const lower = text.toLowerCase();
      if (!words.every((each) => lower.includes(each))) continue;
      const goneAt = here.goneAt(some[place]!);
      const sender = nameOf(parts, groupId, senderId);
      found.push({ groupId, number, sender, text, createdAt, goneAt: goneAt === Infinity ? null : goneAt });
    }
  }
  return found;
}

/** Splits what is searched for into words, and what stands in quotes. */
function wordsOf(wanted: string): string[] {
  return [...wanted.toLowerCase().matchAll(/"([^"]+)"|(\S+)/g)].map((each) => each[1] ?? each[2]!);
}
