/** The stored state of all groups: MLS states, group records, and known keys. All changes are transactions. */

import type { Id, Key } from "../api";
import { hex, sha256 } from "../bytes";
import { MlsError } from "../mls/errors";
import { MlsGroup, type StoredGroup } from "../mls/group";
import { Batch, StorageError, type Vault } from "../store/vault";
import { Agenda } from "./agenda";
import * as texts from "./texts";
import { GroupTransaction, type News, type ReadMessages } from "./transaction";
import { EncryptionError } from "./errors";
import { GroupRecord } from "./group-record";
import { fingerprintOf, keyOf, type KnownKeys } from "./people";

const UNUSABLE = "This device's keys of this group are unusable. It rejoins the group.";

/** The current state of a group's encryption. */
export interface EncryptionStatus {
  state: "encrypted" | "waiting" | "replaced";
  /** The keys of all members except the user. */
  keys: ReadonlyMap<Id, Key>;
  strangers: readonly Id[];
  epoch: number;
}

/** A text to send again. `original`: the number of its first transmission. */
export interface PendingResend {
  key: number;
  groupId: Id;
  text: string;
  selfDestructSeconds: number;
  original: number;
}

export class GroupStore {
  readonly agenda: Agenda;
  protected readonly records = new Map<Id, GroupRecord>();
  protected readonly groups = new Map<Id, MlsGroup>();
  protected readonly statuses = new Map<Id, Omit<EncryptionStatus, "strangers">>();
  /** The key of the last sent text of each group when the page was opened. */
  protected readonly lastStoredKey = new Map<Id, number>();
  protected news: News[] = [];
  private readonly read = new Map<Id, ReadMessages>();
  private known: KnownKeys = {};
  private last: Promise<unknown> = Promise.resolve();

  protected constructor(
    protected readonly vault: Vault,
    readonly userId: Id,
    clock?: () => number,
  ) {
    this.agenda = new Agenda(clock);
  }

  /** Reads all stored groups. */
  protected async readAll(): Promise<void> {
    this.known = (await this.vault.get<KnownKeys>(["people"])) ?? {};
    const keys = this.vault.keys("held");
    for (const [at, stored] of (await this.vault.getAll<GroupRecord>(keys)).entries()) {
      const groupId = String(keys[at]![1]);
      const record = GroupRecord.load(stored!);
      this.records.set(groupId, record);
      this.lastStoredKey.set(groupId, record.lastKey);
      const chunks = this.vault.keys("heard", groupId);
      const values = await this.vault.getAll<[number, Id][]>(chunks);
      this.read.set(groupId, new Map(chunks.map((key, place) => [Number(key[2]), values[place]!])));
      await this.load(record);
    }
  }

  private async load(record: GroupRecord): Promise<void> {
    if (record.stage === "out" || record.stage === "replaced") return;
    try {
      const stored = await this.vault.get<StoredGroup>(["mls", record.groupId]);
      if (!stored) throw new MlsError("malformed", "the stored state is missing");
      this.groups.set(record.groupId, MlsGroup.load(stored));
      await this.updateStatus(record.groupId);
    } catch {
      record.dropState();
      this.reportUnusable(record.groupId);
    }
  }

  // Status

  status(groupId: Id): EncryptionStatus {
    const stage = this.records.get(groupId)?.stage;
    const found = this.statuses.get(groupId);
    if (stage !== "in" || !found)
      return { state: stage === "replaced" ? "replaced" : "waiting", keys: new Map(), strangers: [], epoch: 0 };
    const agenda = this.agenda.of(groupId);
    const ids = [this.userId, ...found.keys.keys()];
    const strangers = agenda.isStrangerReported ? ids.filter((each) => !agenda.listed?.has(each)) : [];
    return { ...found, strangers };
  }

  /** Whether a changed key holds messages back until the user verifies or accepts it. */
  hasChangedKeys(groupId: Id): boolean {
    return [...this.status(groupId).keys.values()].some((each) => each.trust === "changed");
  }

  private async updateStatus(groupId: Id): Promise<void> {
    const group = this.groups.get(groupId);
    const keys = new Map<Id, Key>();
    for (const member of group?.members() ?? [])
      if (member.userId !== this.userId) keys.set(member.userId, keyOf(this.known, member.userId, await fingerprintOf(member)));
    this.statuses.set(groupId, { state: "encrypted", keys, epoch: group?.epoch ?? 0 });
  }

  /** Sets the trust in a key. Returns false if the user does not have this key any more. */
  async setTrust(userId: Id, of: string, trust: "verified" | "unknown"): Promise<boolean> {
    const inGroups = [...this.statuses.values()].some(({ keys }) => keys.get(userId)?.fingerprint === of);
    if (!inGroups && this.known[userId]?.fingerprint !== of) return false;
    await this.serialized(async () => {
      const known = { ...this.known, [userId]: { fingerprint: of, trust, former: "", wasVerified: false } };
      await this.vault.write(new Batch().put(["people"], known));
      this.known = known;
      for (const groupId of this.statuses.keys()) await this.updateStatus(groupId);
    });
    return true;
  }

  /** Returns and clears the pending news. */
  takeNews(): News[] {
    const { news } = this;
    this.news = [];
    return news;
  }

  hasKeys(groupId: Id): boolean {
    return this.records.get(groupId)?.stage === "in";
  }

  /** Returns the ids of all stored groups. */
  ids(): Id[] {
    return [...this.records.keys()];
  }

  recordOf(groupId: Id): GroupRecord | undefined {
    return this.records.get(groupId);
  }

  groupOf(groupId: Id): MlsGroup | undefined {
    return this.hasKeys(groupId) ? this.groups.get(groupId) : undefined;
  }

  /** Erases all data of a group. */
  forget(groupId: Id): Promise<void> {
    return this.serialized(async () => {
      const batch = new Batch();
      for (const table of ["held", "mls", "heard"]) for (const key of this.vault.keys(table, groupId)) batch.delete(key);
      await this.vault.write(batch);
      for (const each of [this.records, this.groups, this.read, this.statuses]) each.delete(groupId);
      this.agenda.forget(groupId);
    });
  }

  addNews(...news: News[]): void {
    this.news.push(...news);
  }

  protected reportUnusable(groupId: Id): void {
    this.news.push({ kind: "notice", groupId, what: "lost", sentence: UNUSABLE }, { kind: "changed", groupId });
    this.agenda.schedule(groupId);
  }

  /** Changes the record of a group, if there is one. */
  protected async changeRecord(groupId: Id, work: (record: GroupRecord) => void): Promise<void> {
    if (this.records.has(groupId)) await this.change(groupId, async ({ record }) => work(record));
  }

  /**
   * Changes a group in a transaction, which is on the disk when this returns. Throws EncryptionError for errors in the data
   * of the group, which affect only this group, and StorageError.
   */
  protected change<T>(groupId: Id, work: (tx: GroupTransaction) => Promise<T>, what = "the keys of this group cannot be used"): Promise<T> {
    return this.serialized(async () => {
      const before = this.groups.get(groupId) ?? null;
      const record = this.records.get(groupId) ?? new GroupRecord(groupId);
      const tx = new GroupTransaction(record, before, this.read.get(groupId) ?? new Map(), this.known, this.userId);
      let result: T;
      try {
        result = await work(tx);
        if (tx.group !== before) {
          if (tx.group) tx.batch.put(["mls", groupId], tx.group.store());
          else tx.batch.delete(["mls", groupId]);
        }
        tx.batch.put(["held", groupId], tx.record);
      } catch (error) {
        if (error instanceof EncryptionError || error instanceof StorageError) throw error;
        throw new EncryptionError(`${what}: ${error instanceof Error ? error.message : error}`);
      }
      await this.vault.write(tx.batch);
      this.records.set(groupId, tx.record);
      if (tx.group) this.groups.set(groupId, tx.group);
      else this.groups.delete(groupId);
      this.read.set(groupId, tx.read);
      this.known = tx.known;
      if (tx.group && tx.group !== before) await this.updateStatus(groupId);
      if (tx.haveKeysChanged) for (const each of this.statuses.keys()) await this.updateStatus(each);
      this.news.push(...tx.news);
      return result;
    });
  }

  // Sent texts

  /** Drops the text of a payload that was not stored by the server. */
  async discardPayload(groupId: Id, payload: Uint8Array): Promise<void> {
    const hash = hex(await sha256(payload));
    await this.changeRecord(groupId, (record) => {
      const own = texts.findSent(record, hash);
      if (own && !texts.isKept(own)) texts.dropSent(record, own.key);
    });
  }

  /** Drops all attempts to send a text: one was fetched, or the server has deleted it. */
  removeAttempts(groupId: Id, sendId: string): Promise<void> {
    return this.changeRecord(groupId, (record) => texts.dropAttempts(record, sendId));
  }

  /** Returns texts to send again: their keys had expired, or were not those of the others. */
  pendingResends(): PendingResend[] {
    return [...this.records.values()].flatMap((record) =>
      record.own.flatMap(({ key, text, again, original }) =>
        again === null ? [] : [{ key, groupId: record.groupId, text, selfDestructSeconds: again, original }],
      ),
    );
  }

  dropResend(groupId: Id, key: number): Promise<void> {
    return this.changeRecord(groupId, (record) => texts.dropSent(record, key));
  }

  /** Returns the numbers of messages whose texts are kept. */
  keptNumbers(groupId: Id): number[] {
    const record = this.records.get(groupId);
    return record ? texts.keptNumbers(record) : [];
  }

  /** Erases the kept texts of messages that are gone. */
  eraseMessages(groupId: Id, numbers: Iterable<number>, areTakenBack = false): Promise<void> {
    const all = new Set(numbers);
    return this.changeRecord(groupId, (record) => texts.dropErased(record, all, areTakenBack));
  }

  /** Returns own messages that were sent again although the originals were taken back. */
  pendingTakeBacks(): { groupId: Id; number: number }[] {
    return [...this.records.values()].flatMap(({ groupId, unwanted }) => unwanted.map((number) => ({ groupId, number })));
  }

  recordTakenBack(groupId: Id, number: number): Promise<void> {
    return this.changeRecord(groupId, (record) => {
      record.unwanted = record.unwanted.filter((each) => each !== number);
      record.repeats = record.repeats.filter((each) => each.number !== number);
    });
  }

  /** Returns the numbers of the repetitions of a message. */
  repeatsOf(groupId: Id, number: number): number[] {
    return (this.records.get(groupId)?.repeats ?? []).filter((each) => each.original === number).map((each) => each.number);
  }

  protected serialized<T>(work: () => Promise<T>): Promise<T> {
    const done = this.last.then(work);
    this.last = done.catch(() => undefined);
    return done;
  }
}
