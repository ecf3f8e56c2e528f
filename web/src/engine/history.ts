/**
 * The messages that are here: each once, in order, and no longer than the effective policy of its group allows. What of
 * them is in memory says when they are gone; their texts are read as they are wanted.
 */

import type { Id } from "./api";
import type { Batch, Key, Vault } from "./store/vault";
import { Batch as NewBatch } from "./store/vault";
import type { ServerClock } from "./server/clock";

/** Numbers of a block: what is known of its messages is stored together. */
const BLOCK = 256;
const NEVER = Infinity;

/**
 * A message without its text. `redactAt`: the first second at which its timer has ended; null: none runs. `lifetime`: by
 * the group's policy before delete-after-fetch; null: none.
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
export interface New {
  number: number;
  senderId: Id;
  text: string | null;
  createdAt: number;
  selfDestructSeconds: number;
  isMention: boolean;
}

/** `expiry`: effective: -1 keep, 0 delete-after-fetch, or seconds. `toldUpTo`: what the server knows of `readUpTo`. */
export class GroupHistory {
  fetchedUpTo = 0;
  readUpTo = 0;
  toldUpTo = 0;
  expiry = -1;
  /** Ascending by number. */
  entries: Entry[] = [];

  constructor(readonly groupId: Id) {}

  /** The first second at which a message is gone; Infinity: it stays. */
  goneAt(entry: Entry): number {
    const began = Math.min(entry.createdAt, entry.arrivedAt);
    const lifetime = this.expiry > 0 ? this.expiry : this.expiry === 0 ? entry.lifetime : null;
    return Math.min(entry.redactAt ?? NEVER, lifetime === null ? NEVER : began + lifetime + 1);
  }

  /** Whether a message of somebody else was not seen. */
  isUnread(entry: Entry, userId: Id): boolean {
    return entry.number > this.readUpTo && !entry.isSeen && entry.senderId !== userId;
  }

  find(number: number): Entry | undefined {
    const entry = this.entries[this.indexOf(number)];
    return entry?.number === number ? entry : undefined;
  }

  /** The place of the first message whose number is not less. */
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

  /** Opens what is kept. What expired while nothing ran is erased before this returns. */
  static async open(vault: Vault, userId: Id, clock: ServerClock): Promise<History> {
    const made = new History(vault, userId, clock);
    for (const key of vault.keys("history")) await made.reload(String(key[1]));
    await made.enforce();
    return made;
  }

  /** Reads a group anew: after a write that failed. */
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

  /** What may be shown now. */
  shown(groupId: Id): Entry[] {
    const group = this.group(groupId);
    const now = this.clock.now();
    return group.entries.filter((each) => group.goneAt(each) > now);
  }

  /** The texts of messages; null: it cannot be read. */
  async texts(groupId: Id, entries: readonly Entry[]): Promise<(string | null)[]> {
    const found = await this.vault.getAll<string>(entries.map((each): Key => ["text", groupId, each.number]));
    return found.map((each) => each ?? null);
  }

  /** Stores a page whose last number is `upTo`; what is expired already is not. The batch has to be written then. */
  store(groupId: Id, upTo: number, messages: readonly New[], batch: Batch): Entry[] {
    const group = this.group(groupId);
    const now = Math.floor(this.clock.now());
    const arrived: Entry[] = [];
    for (const { text, ...message } of messages) {
      if (group.find(message.number)) continue;
      const isOwn = message.senderId === this.userId;
      const timer = message.selfDestructSeconds;
      const began = isOwn ? Math.min(message.createdAt, now) : message.number <= group.readUpTo ? Math.floor(this.clock.earliest()) : null;
      const redactAt = timer > 0 && began !== null ? began + timer : null;
      const entry = { ...message, isReadable: text !== null, arrivedAt: now, redactAt, lifetime: null, isSeen: isOwn };
      if (group.goneAt(entry) <= this.clock.sure()) continue;
      group.entries.splice(group.indexOf(entry.number), 0, entry);
      if (text !== null) batch.put(["text", groupId, entry.number], text);
      arrived.push(entry);
    }
    group.fetchedUpTo = Math.max(group.fetchedUpTo, upTo);
    this.putBlocks(group, arrived, batch);
    this.putGroup(group, batch);
    return arrived;
  }

  /** Notes a group's effective expiry, which holds for all its messages at once. Tells whether it is another one. */
  async setExpiry(groupId: Id, expiry: number): Promise<boolean> {
    const group = this.group(groupId);
    const former = group.expiry;
    if (former === expiry && this.vault.keys("history", groupId).length > 0) return false;
    group.expiry = expiry;
    const batch = new NewBatch();
    const lifetime = expiry === 0 && former > 0 ? former : null; // with delete-after-fetch what is here keeps its lifetime
    const changed = group.entries.filter((each) => each.lifetime !== lifetime);
    for (const each of changed) each.lifetime = lifetime;
    this.putBlocks(group, changed, batch);
    await this.vault.write(this.putGroup(group, batch));
    return former !== expiry;
  }

  /** Notes messages that were really seen. `numbers`: null: all is put aside but what destroys itself. */
  async seen(groupId: Id, numbers: readonly number[] | null): Promise<void> {
    const group = this.group(groupId);
    const wanted = numbers && new Set(numbers);
    const changed = group.entries.filter(
      (each) => !each.isSeen && each.number > group.readUpTo && (wanted ? wanted.has(each.number) : each.selfDestructSeconds === 0),
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
    const batch = new NewBatch();
    this.putBlocks(group, changed, batch);
    await this.vault.write(this.putGroup(group, batch));
  }

  /** What the user has seen, and the server does not know. */
  untold(): { groupId: Id; upTo: number }[] {
    return [...this.groups.values()].flatMap(({ groupId, readUpTo, toldUpTo }) => (readUpTo > toldUpTo ? [{ groupId, upTo: readUpTo }] : []));
  }

  async told(groupId: Id, upTo: number): Promise<void> {
    const group = this.group(groupId);
    group.toldUpTo = Math.max(group.toldUpTo, upTo);
    await this.vault.write(this.putGroup(group, new NewBatch()));
  }

  /** Erases messages; returns the numbers of those that were here. */
  async forget(groupId: Id, which: (entry: Entry) => boolean): Promise<number[]> {
    const group = this.groups.get(groupId);
    const gone = group?.entries.filter(which) ?? [];
    if (!group || gone.length === 0) return [];
    const batch = new NewBatch();
    const left = new Set(gone);
    group.entries = group.entries.filter((each) => !left.has(each));
    for (const each of gone) batch.erase(["text", groupId, each.number]);
    this.putBlocks(group, gone, batch);
    await this.vault.write(batch);
    return gone.map((each) => each.number);
  }

  /** Erases a whole group. Tells whether anything was here. */
  async forgetGroup(groupId: Id): Promise<boolean> {
    const keys = ["history", "block", "text", "draft"].flatMap((table) => this.vault.keys(table, groupId));
    const batch = new NewBatch();
    for (const key of keys) batch.erase(key);
    this.groups.delete(groupId);
    await this.vault.write(batch);
    return keys.length > 0;
  }

  /** Erases what may not be here any more; returns what that was. */
  async enforce(): Promise<{ groupId: Id; numbers: number[] }[]> {
    const sure = this.clock.sure();
    const erased: { groupId: Id; numbers: number[] }[] = [];
    for (const group of this.groups.values()) {
      if (!group.entries.some((each) => group.goneAt(each) <= sure)) continue;
      erased.push({ groupId: group.groupId, numbers: await this.forget(group.groupId, (each) => group.goneAt(each) <= sure) });
    }
    return erased;
  }

  private putGroup(group: GroupHistory, batch: Batch): Batch {
    const { fetchedUpTo, readUpTo, toldUpTo, expiry } = group;
    return batch.put(["history", group.groupId], { fetchedUpTo, readUpTo, toldUpTo, expiry });
  }

  /** Writes the blocks anew in which entries have changed. */
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
