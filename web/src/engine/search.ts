/** Searches the local messages. Searches are not stored. */

import type { Id, SearchResult } from "./api";
import type { Entry } from "./history";
import { nameOf, type Parts } from "./view";

const MAX_RESULTS = 100;
const CHUNK = 500;

/** Returns the newest messages that contain all words. `groupId`: only in this group. */
export async function search(parts: Parts, query: string, groupId?: Id): Promise<SearchResult[]> {
  const words = wordsOf(query);
  if (words.length === 0) return [];
  const found: SearchResult[] = [];
  for (const each of groupId ? [groupId] : parts.history.ids()) found.push(...(await searchGroup(parts, each, words)));
  return found.sort((one, other) => other.createdAt - one.createdAt).slice(0, MAX_RESULTS);
}

async function searchGroup(parts: Parts, groupId: Id, words: readonly string[]): Promise<SearchResult[]> {
  const { history, userId } = parts;
  const group = history.group(groupId);
  // Unseen self-destructing messages are skipped: showing one would have to start its timer.
  const isSearchable = (each: Entry): boolean =>
    each.isReadable && !(each.selfDestructSeconds > 0 && group.isUnread(each, userId));
  const all = history.shown(groupId).filter(isSearchable).reverse();
  const found: SearchResult[] = [];
  for (let at = 0; at < all.length && found.length < MAX_RESULTS; at += CHUNK) {
    const chunk = all.slice(at, at + CHUNK);
    const texts = await history.texts(groupId, chunk);
    for (const [index, { number, senderId, createdAt }] of chunk.entries()) {
      const text = texts[index] ?? "";
      const lower = text.toLowerCase();
      if (!words.every((each) => lower.includes(each))) continue;
      const goneAt = group.goneAt(chunk[index]!);
      const sender = nameOf(parts, groupId, senderId);
      found.push({ groupId, number, sender, text, createdAt, goneAt: goneAt === Infinity ? null : goneAt });
    }
  }
  return found;
}

/** Splits a query into words and quoted phrases, in lower case. */
function wordsOf(query: string): string[] {
  return [...query.toLowerCase().matchAll(/"([^"]+)"|(\S+)/g)].map((each) => each[1] ?? each[2]!);
}
