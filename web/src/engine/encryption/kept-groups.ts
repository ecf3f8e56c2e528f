/** What is kept of groups: their states, how the user stands in them, whose keys are known; and how it is changed. */

import type { Id, Key } from "../api";
import { MlsError } from "../mls/errors";
import { MlsGroup, type StoredGroup } from "../mls/group";
import { Batch, StorageError, type Vault } from "../store/vault";
import { Agenda } from "./agenda";
import { Draft, type Heard, type News } from "./draft";
import { EncryptionError } from "./errors";
import { Held } from "./held";
import { fingerprintOf, keyOf, type Known } from "./people";

const LOST = "The keys of this group cannot be used on this device any more. It comes in again.";

/** A group's encryption as it is now. */
export interface Sight {
  standing: "encrypted" | "waiting" | "replaced";
  /** Who can read, by the keys; without the user. */
  keys: ReadonlyMap<Id, Key>;
  strangers: readonly Id[];
  epoch: number;
}

export class KeptGroups {
  readonly agenda: Agenda;
  protected readonly held = new Map<Id, Held>();
  protected readonly groups = new Map<Id, MlsGroup>();
  protected readonly sights = new Map<Id, Omit<Sight, "strangers">>();
  /** The last own text of each group that an earlier program has left. */
  protected readonly lastFormer = new Map<Id, number>();
  protected news: News[] = [];
  private readonly heard = new Map<Id, Heard>();
  private known: Known = {};
  private last: Promise<unknown> = Promise.resolve();

  protected constructor(
    protected readonly vault: Vault,
    readonly userId: Id,
    clock?: () => number,
  ) {
    this.agenda = new Agenda(clock);
  }

  /** Reads everything. */
  protected async readAll(): Promise<void> {
    this.known = (await this.vault.get<Known>(["people"])) ?? {};
    const keys = this.vault.keys("held");
    for (const [at, stored] of (await this.vault.getAll<Held>(keys)).entries()) {
      const groupId = String(keys[at]![1]);
      const held = Held.load(stored!);
      this.held.set(groupId, held);
      this.lastFormer.set(groupId, held.lastKey);
      const chunks = this.vault.keys("heard", groupId);
      const values = await this.vault.getAll<[number, Id][]>(chunks);
      this.heard.set(groupId, new Map(chunks.map((key, place) => [Number(key[2]), values[place]!])));
      await this.load(held);
    }
  }

  private async load(held: Held): Promise<void> {
    if (held.stage === "out" || held.stage === "replaced") return;
    try {
      const stored = await this.vault.get<StoredGroup>(["mls", held.groupId]);
      if (!stored) throw new MlsError("malformed", "there is no state");
      this.groups.set(held.groupId, MlsGroup.load(stored));
      await this.look(held.groupId);
    } catch {
      held.leave();
      this.lost(held.groupId);
    }
  }

  // What is shown

  /** Returns a group's encryption as it is now. */
  sight(groupId: Id): Sight {
    const stage = this.held.get(groupId)?.stage;
    const found = this.sights.get(groupId);
    if (stage !== "in" || !found)
      return { standing: stage === "replaced" ? "replaced" : "waiting", keys: new Map(), strangers: [], epoch: 0 };
    const agenda = this.agenda.of(groupId);
    const ids = [this.userId, ...found.keys.keys()];
    const strangers = agenda.isStrangerTold ? ids.filter((each) => !agenda.listed?.has(each)) : [];
    return { ...found, strangers };
  }

  /** Whether the user has to judge a key before anything is sent. */
  isInDoubt(groupId: Id): boolean {
    return [...this.sight(groupId).keys.values()].some((each) => each.trust === "changed");
  }

  /** Works out who can read a group. */
  private async look(groupId: Id): Promise<void> {
    const group = this.groups.get(groupId);
    const keys = new Map<Id, Key>();
    for (const member of group?.members() ?? [])
      if (member.userId !== this.userId) keys.set(member.userId, keyOf(this.known, member.userId, await fingerprintOf(member)));
    this.sights.set(groupId, { standing: "encrypted", keys, epoch: group?.epoch ?? 0 });
  }

  /** Notes what the user thinks of a key, which is the one that is good from here on. False: the person does not have it. */
  async judge(userId: Id, of: string, trust: "verified" | "unknown"): Promise<boolean> {
    const inGroups = [...this.sights.values()].some(({ keys }) => keys.get(userId)?.fingerprint === of);
    if (!inGroups && this.known[userId]?.fingerprint !== of) return false;
    await this.inTurn(async () => {
      const known = { ...this.known, [userId]: { fingerprint: of, trust, former: "", wasVerified: false } };
      await this.vault.write(new Batch().put(["people"], known));
      this.known = known;
      for (const groupId of this.sights.keys()) await this.look(groupId);
    });
    return true;
  }

  /** Returns what people should know, and was not told. */
  takeNews(): News[] {
    const told = this.news;
    this.news = [];
    return told;
  }

  hasKeys(groupId: Id): boolean {
    return this.held.get(groupId)?.stage === "in";
  }

  /** The groups of which something is kept. */
  ids(): Id[] {
    return [...this.held.keys()];
  }

  heldOf(groupId: Id): Held | undefined {
    return this.held.get(groupId);
  }

  groupOf(groupId: Id): MlsGroup | undefined {
    return this.hasKeys(groupId) ? this.groups.get(groupId) : undefined;
  }

  /** Erases all that is here of a group. */
  forget(groupId: Id): Promise<void> {
    return this.inTurn(async () => {
      const batch = new Batch();
      for (const table of ["held", "mls", "heard"]) for (const key of this.vault.keys(table, groupId)) batch.delete(key);
      await this.vault.write(batch);
      for (const each of [this.held, this.groups, this.heard, this.sights]) each.delete(groupId);
      this.agenda.forget(groupId);
    });
  }

  tell(...news: News[]): void {
    this.news.push(...news);
  }

  protected lost(groupId: Id): void {
    this.news.push({ kind: "notice", groupId, what: "lost", sentence: LOST }, { kind: "changed", groupId });
    this.agenda.want(groupId);
  }

  /** Changes what is kept beside the state. */
  protected async changeOwn(groupId: Id, work: (held: Held) => void): Promise<void> {
    if (this.held.has(groupId)) await this.change(groupId, async ({ held }) => work(held));
  }

  /**
   * Changes a group, all or nothing: what is changed is on the disk at the end. Whatever the data of the group leads to is
   * an EncryptionError, so that only this group is affected; what the storage throws concerns all groups.
   */
  protected change<T>(groupId: Id, work: (draft: Draft) => Promise<T>, what = "the keys of this group cannot be used"): Promise<T> {
    return this.inTurn(async () => {
      const before = this.groups.get(groupId) ?? null;
      const held = this.held.get(groupId) ?? new Held(groupId);
      const draft = new Draft(held, before, this.heard.get(groupId) ?? new Map(), this.known, this.userId);
      let result: T;
      try {
        result = await work(draft);
        if (draft.group !== before) {
          if (draft.group) draft.batch.put(["mls", groupId], draft.group.store());
          else draft.batch.delete(["mls", groupId]);
        }
        draft.batch.put(["held", groupId], draft.held);
      } catch (error) {
        if (error instanceof EncryptionError || error instanceof StorageError) throw error;
        throw new EncryptionError(`${what}: ${error instanceof Error ? error.message : error}`);
      }
      await this.vault.write(draft.batch);
      this.held.set(groupId, draft.held);
      if (draft.group) this.groups.set(groupId, draft.group);
      else this.groups.delete(groupId);
      this.heard.set(groupId, draft.heard);
      this.known = draft.known;
      if (draft.group && draft.group !== before) await this.look(groupId);
      if (draft.haveKeysChanged) for (const each of this.sights.keys()) await this.look(each);
      this.news.push(...draft.news);
      return result;
    });
  }

  protected inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.last.then(work);
    this.last = done.catch(() => undefined);
    return done;
  }
}
