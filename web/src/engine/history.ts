/**
 * The local messages: each once, in order, and no longer than the effective policy of its group allows. The metadata are
 * in memory; texts are read from the vault on demand.
 */

import type { Id } from "./api";
import type { ServerClock } from "./server/clock";
import { Batch, type Key, type Vault } from "./store/vault";

/** Message numbers per block: the metadata of a block are stored together. */
const BLOCK = 256;
const NEVER = Infinity;

/**
 * The metadata of a message. `redactAt`: the first second after its self-destruct timer; null: not started. `lifetime`: of
 * the group's policy before it changed to delete-after-fetch; null: none.
 */
export interface Entry {
  number: number;
  senderId: Id;
  isReadable: boolean;
  createdAt: number;
  arrivedAt: number;
  selfDestructSeconds: number;
  redactAt: number | null;
  lifetime: number | null;
  isSeen: boolean;
  isMention: boolean;
}

/** A message to store. `text`: null if it cannot be read. */
export interface NewMessage {
  number: number;
  senderId: Id;
  text: string | null;
  createdAt: number;
  selfDestructSeconds: number;
  isMention: boolean;
}

/** `expiry`: the effective one: -1 keep, 0 delete-after-fetch, or seconds. `reportedUpTo`: `readUpTo` as reported to the server. */
export class GroupHistory {
  fetchedUpTo = 0;
  readUpTo = 0;
  reportedUpTo = 0;
  expiry = -1;
  /** Ascending by number. */
  entries: Entry[] = [];

  constructor(readonly groupId: Id) {}

  /** Returns the first second at which a message is gone; Infinity: it does not expire. */
  goneAt(entry: Entry): number {
    const startedAt = Math.min(entry.createdAt, entry.arrivedAt);
    const lifetime = this.expiry > 0 ? this.expiry : this.expiry === 0 ? entry.lifetime : null;
    return Math.min(entry.redactAt ?? NEVER, lifetime === null ? NEVER : startedAt + lifetime + 1);
  }

  /** Whether it is a message of another user that was not seen. */
  isUnread(entry: Entry, userId: Id): boolean {
    return entry.number > this.readUpTo && !entry.isSeen && entry.senderId !== userId;
  }

  find(number: number): Entry | undefined {
    const entry = this.entries[this.indexOf(number)];
    return entry?.number === number ? entry : undefined;
  }

  /** Returns the index of the first message with this number or a higher one. */
  indexOf(number: number): number {
    let low = 0;
    let high = this.entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.entries[middle]!.number < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

export class History {
  private readonly groups = new Map<Id, GroupHistory>();

  constructor(
    private readonly vault: Vault,
    private readonly userId: Id,
    private readonly clock: ServerClock,
  ) {}

  /** Reads the stored messages. Erases expired ones before it returns. */
  static async open(vault: Vault, userId: Id, clock: ServerClock): Promise<History> {
    const made = new History(vault, userId, clock);
    for (const key of vault.keys("history")) await made.reload(String(key[1]));
    await made.eraseExpired();
    return made;
  }

  /** Reads a group again, after a failed write. */
  async reload(groupId: Id): Promise<void> {
    const group = new GroupHistory(groupId);
    Object.assign(group, await this.vault.get<object>(["history", groupId]));
    const blocks = await this.vault.getAll<Entry[]>(this.vault.keys("block", groupId));
    group.entries = blocks.flatMap((each) => each ?? []).sort((one, other) => one.number - other.number);
    this.groups.set(groupId, group);
  }

  ids(): Id[] {
    return [...this.groups.keys()];
  }

  has(groupId: Id): boolean {
    return this.groups.has(groupId);
  }

  group(groupId: Id): GroupHistory {
    let found = this.groups.get(groupId);
    if (!found) this.groups.set(groupId, (found = new GroupHistory(groupId)));
    return found;
  }

  /** Returns the messages that may be shown now. */
  shown(groupId: Id): Entry[] {
    const group = this.group(groupId);
    const now = this.clock.now();
    return group.entries.filter((each) => group.goneAt(each) > now);
  }

  /** Returns the texts of messages; null for unreadable ones. */
  async texts(groupId: Id, entries: readonly Entry[]): Promise<(string | null)[]> {
    const found = await this.vault.getAll<string>(entries.map((each): Key => ["text", groupId, each.number]));
    return found.map((each) => each ?? null);
  }

  /**
   * Adds a page of messages to a batch, which the caller writes. `upTo`: the last number of the page. Expired messages are
   * skipped. Returns the new entries.
   */
  store(groupId: Id, upTo: number, messages: readonly NewMessage[], batch: Batch): Entry[] {
    const group = this.group(groupId);
    const now = Math.floor(this.clock.now());
    const added: Entry[] = [];
    for (const { text, ...message } of messages) {
      if (group.find(message.number)) continue;
      const isOwn = message.senderId === this.userId;
      const timer = message.selfDestructSeconds;
      const startedAt = isOwn ? Math.min(message.createdAt, now) : message.number <= group.readUpTo ? Math.floor(this.clock.earliest()) : null;
      const redactAt = timer > 0 && startedAt !== null ? startedAt + timer : null;
      const entry = { ...message, isReadable: text !== null, arrivedAt: now, redactAt, lifetime: null, isSeen: isOwn };
      if (group.goneAt(entry) <= this.clock.confirmedNow()) continue;
      group.entries.splice(group.indexOf(entry.number), 0, entry);
      if (text !== null) batch.put(["text", groupId, entry.number], text);
      added.push(entry);
    }
    group.fetchedUpTo = Math.max(group.fetchedUpTo, upTo);
    this.putBlocks(group, added, batch);
    this.putGroup(group, batch);
    return added;
  }

  /** Sets a group's effective expiry, which applies to all its messages at once. Returns whether it has changed. */
  async setExpiry(groupId: Id, expiry: number): Promise<boolean> {
    const group = this.group(groupId);
    const former = group.expiry;
    if (former === expiry && this.vault.keys("history", groupId).length > 0) return false;
    group.expiry = expiry;
    const batch = new Batch();
    const lifetime = expiry === 0 && former > 0 ? former : null; // local messages keep their lifetime
    const changed = group.entries.filter((each) => each.lifetime !== lifetime);
    for (const each of changed) each.lifetime = lifetime;
    this.putBlocks(group, changed, batch);
    await this.vault.write(this.putGroup(group, batch));
    return former !== expiry;
  }

  /** Marks messages as seen. `numbers`: null: all except self-destructing ones. */
  async markSeen(groupId: Id, numbers: readonly number[] | null): Promise<void> {
    const group = this.group(groupId);
    const selected = numbers && new Set(numbers);
    const changed = group.entries.filter(
      (each) => !each.isSeen && each.number > group.readUpTo && (selected ? selected.has(each.number) : each.selfDestructSeconds === 0),
    );
    for (const each of changed) each.isSeen = true;
    const first = group.entries.find((each) => group.isUnread(each, this.userId));
    const before = first ? group.entries.filter((each) => each.number < first.number) : group.entries;
    const upTo = before.at(-1)?.number ?? 0;
    if (upTo > group.readUpTo) {
      const now = Math.floor(this.clock.earliest());
      for (const each of before) {
        if (each.number <= group.readUpTo || each.selfDestructSeconds === 0 || each.redactAt !== null) continue;
        each.redactAt = now + each.selfDestructSeconds;
        changed.push(each);
      }
      group.readUpTo = upTo;
    }
    const batch = new Batch();
    this.putBlocks(group, changed, batch);
    await this.vault.write(this.putGroup(group, batch));
  }

  /** Returns read positions that were not reported to the server. */
  unreportedReads(): { groupId: Id; upTo: number }[] {
    return [...this.groups.values()].flatMap(({ groupId, readUpTo, reportedUpTo }) => (readUpTo > reportedUpTo ? [{ groupId, upTo: readUpTo }] : []));
  }

  async markReported(groupId: Id, upTo: number): Promise<void> {
    const group = this.group(groupId);
    group.reportedUpTo = Math.max(group.reportedUpTo, upTo);
    await this.vault.write(this.putGroup(group, new Batch()));
  }

  /** Erases messages, and returns their numbers. */
  async erase(groupId: Id, condition: (entry: Entry) => boolean): Promise<number[]> {
    const group = this.groups.get(groupId);
    const erased = new Set(group?.entries.filter(condition));
    if (!group || erased.size === 0) return [];
    const batch = new Batch();
    group.entries = group.entries.filter((each) => !erased.has(each));
    for (const each of erased) batch.erase(["text", groupId, each.number]);
    this.putBlocks(group, [...erased], batch);
    await this.vault.write(batch);
    return [...erased].map((each) => each.number);
  }

  /** Erases a whole group. Returns whether there was anything. */
  async forgetGroup(groupId: Id): Promise<boolean> {
    const keys = ["history", "block", "text", "draft"].flatMap((table) => this.vault.keys(table, groupId));
    const batch = new Batch();
    for (const key of keys) batch.erase(key);
    this.groups.delete(groupId);
    await this.vault.write(batch);
    return keys.length > 0;
  }

  /** Erases expired messages, and returns their numbers. */
  async eraseExpired(): Promise<{ groupId: Id; numbers: number[] }[]> {
    const now = this.clock.confirmedNow();
    const erased: { groupId: Id; numbers: number[] }[] = [];
    for (const group of this.groups.values()) {
      if (!group.entries.some((each) => group.goneAt(each) <= now)) continue;
      erased.push({ groupId: group.groupId, numbers: await this.erase(group.groupId, (each) => group.goneAt(each) <= now) });
    }
    return erased;
  }

  private putGroup(group: GroupHistory, batch: Batch): Batch {
    const { fetchedUpTo, readUpTo, reportedUpTo, expiry } = group;
    return batch.put(["history", group.groupId], { fetchedUpTo, readUpTo, reportedUpTo, expiry });
  }

  /** Adds the blocks of changed entries to a batch. */
  private putBlocks(group: GroupHistory, changed: readonly Entry[], batch: Batch): void {
    for (const block of new Set(changed.map((each) => Math.floor(each.number / BLOCK)))) {
      const from = group.indexOf(block * BLOCK);
      const entries = group.entries.slice(from, group.indexOf((block + 1) * BLOCK));
      const key: Key = ["block", group.groupId, block];
      if (entries.length > 0) batch.put(key, structuredClone(entries));
      else batch.delete(key);
    }
  }
}
