/** The stored record of a group's encryption: the user's stage, recent commits, sent texts, and when members joined. */

import type { Id } from "../api";

const MAX_COMMITS = 256;
/** Own commits to join that are remembered. */
const MAX_JOIN_COMMITS = 32;
const MAX_JOINERS = 4_096;
const MAX_REPEATS = 256;

/**
 * `out`: without keys. `awaiting`: with the state after a commit that was not fetched yet, an own external one or that of
 * an invite. `in`: with the state of the group. `replaced`: another device of the account has replaced this one, which
 * rejoins only if the user resets the keys.
 */
export type Stage = "out" | "awaiting" | "in" | "replaced";

/** A member who joined by message `at`. `isClaimed`: that message was rejected, so the member may not have joined. */
interface Joiner {
  at: number;
  wasRemoved: boolean;
  isClaimed: boolean;
}

/**
 * A sent text, until it is fetched, and later as long as others may be unable to read it. `hash`: of the payload. `epoch`:
 * in which it was encrypted; NO_EPOCH: its keys were dropped. `original`: the number of its first transmission; 0: not
 * fetched yet. `again`: the timer with which to send it again; null: it is not sent again. `kept`: its timer, if it was
 * fetched but others may not have its keys. `isUnwanted`: the original was taken back. `text`: "" if it was erased.
 */
export interface SentText {
  key: number;
  hash: string;
  text: string;
  epoch: number;
  madeAt: number;
  original: number;
  again: number | null;
  kept: number | null;
  isUnwanted: boolean;
  sendId: string;
}

export const NO_EPOCH = -1;

/**
 * `upTo`: the last message that was processed. `firstEpoch`: the first epoch of which the user has keys. `enteredEpoch`:
 * the epoch in which the last member joined. `missed`: messages that were fetched without keys. `hadKeys`: the user had
 * keys before, and lost them. `renewedAt`: when the own leaf was created. `welcome`: the hash of the last processed
 * Welcome. `baseTag`: the tag of the epoch on which the own external commit is based; "": none. `enteredAt`: the number of
 * the commit by which the user joined; 0: the user created the group. `inSince`: when that commit was fetched.
 * `isDoubtful`: the state may be an old copy, whose keys were used for messages that it does not know. `confirmedBy`: an
 * earlier member who has sent a message with these keys; "": none yet.
 */
export class GroupRecord {
  stage: Stage = "out";
  awaitedEpoch = 0;
  awaitedTag = "";
  firstEpoch = 0;
  enteredEpoch = 0;
  upTo = 0;
  missed = 0;
  hadKeys = false;
  renewedAt = 0;
  welcome = "";
  baseTag = "";
  enteredAt = 0;
  inSince = 0;
  confirmedBy: Id = "";
  isDoubtful = false;
  /** Commits that were applied, or fetched without keys: number, epoch, tag. */
  commits: [number, number, string][] = [];
  joinCommits: string[] = [];
  joiners: Record<Id, Joiner> = {};
  own: SentText[] = [];
  lastKey = 0;
  /** Repetitions of messages that were fetched. */
  repeats: { number: number; original: number; isOwn: boolean }[] = [];
  /** Own messages to take back, since the originals were taken back. */
  unwanted: number[] = [];

  constructor(readonly groupId: Id) {}

  static load(stored: GroupRecord): GroupRecord {
    return Object.assign(new GroupRecord(stored.groupId), stored);
  }

  copy(): GroupRecord {
    return GroupRecord.load(structuredClone({ ...this }) as GroupRecord);
  }

  /** Whether no earlier member has used these keys yet. */
  get isUnconfirmed(): boolean {
    return this.confirmedBy === "";
  }

  awaitCommit(epoch: number, tag: string, baseTag: string): void {
    this.stage = "awaiting";
    [this.awaitedEpoch, this.awaitedTag, this.baseTag] = [epoch, tag, baseTag];
  }

  dropState(stage: Stage = "out"): void {
    this.hadKeys ||= this.stage === "in";
    this.stage = stage;
    [this.awaitedEpoch, this.awaitedTag, this.baseTag, this.confirmedBy, this.isDoubtful] = [0, "", "", "", false];
  }

  // Commits

  recordCommit(number: number, epoch: number, tag: string): void {
    if (!this.commits.some(([each]) => each === number)) this.commits.push([number, epoch, tag]);
    this.commits = this.commits.sort(([one], [other]) => one - other).slice(-MAX_COMMITS);
  }

  /** Returns number and tag of the first recorded commit of this epoch or a later one. */
  firstCommit(epoch: number): { number: number; tag: string } | null {
    const found = this.commits.find(([, each]) => each >= epoch);
    return found ? { number: found[0], tag: found[2] } : null;
  }

  /** Returns the tag of the first commit that led into an epoch; null if not known. */
  commitInto(epoch: number): string | null {
    if (!this.commits.some(([, each]) => each < epoch - 1)) return null;
    return this.commits.find(([, each]) => each === epoch - 1)?.[2] || null;
  }

  /** Whether the state was in the epoch with this confirmation tag, by the recorded commits. */
  hasPassed(tag: string): boolean {
    return tag === this.baseTag || this.commits.some(([, , each]) => each === tag);
  }

  /** Records the tag of an own commit to join. */
  recordJoinCommit(tag: string): void {
    this.joinCommits = [...this.joinCommits, tag].slice(-MAX_JOIN_COMMITS);
  }

  // Joiners

  /**
   * Records that a user joined by the message of this number. Returns whether the user is new or was removed before.
   * `isClaimed`: the message was rejected, so the user may not have joined.
   */
  recordJoiner(userId: Id, number: number, isClaimed = false): boolean {
    const former = this.joiners[userId];
    const isNew = !former || former.wasRemoved || former.isClaimed;
    this.joiners[userId] = { at: number, wasRemoved: false, isClaimed: isClaimed && isNew };
    const all = Object.entries(this.joiners);
    if (all.length > MAX_JOINERS) {
      all.sort(([, one], [, other]) => Number(one.isClaimed) - Number(other.isClaimed) || other.at - one.at);
      this.joiners = Object.fromEntries(all.slice(0, MAX_JOINERS));
    }
    return isNew;
  }

  /**
   * Records the members at the time the user joins by the message of this number. Returns the number from which on all of
   * them may have been members.
   */
  recordPresent(userIds: Iterable<Id>, number: number): number {
    let since = 0;
    for (const userId of userIds) {
      const former = this.joiners[userId];
      if (former && !former.wasRemoved && !former.isClaimed) continue;
      since = Math.max(since, former?.isClaimed ? former.at : number);
      this.joiners[userId] = { at: former?.at ?? 0, wasRemoved: false, isClaimed: false };
    }
    return since;
  }

  recordRemoved(userIds: Iterable<Id>): void {
    for (const userId of userIds) {
      const former = this.joiners[userId];
      if (former) former.wasRemoved = true;
    }
  }

  /** Whether a user did not join after this device. */
  isSenior(userId: Id): boolean {
    return (this.joiners[userId]?.at ?? 0) <= this.enteredAt;
  }

  recordRepeat(original: number, number: number, isOwn: boolean): void {
    if (this.repeats.some((each) => each.number === number)) return;
    this.repeats.push({ number, original, isOwn });
    this.repeats = this.repeats.sort((one, other) => one.number - other.number).slice(-MAX_REPEATS);
  }
}
