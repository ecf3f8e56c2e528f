/** Schedules the maintenance of groups. In memory only: it is derived from the state again at each start. */

import type { Id } from "../api";
import type { ListedGroup } from "../server/wire";

/** Changes within this time are handled together. */
export const SOON_SECONDS = 0.2;
/** Each group is checked once an hour, to renew keys and to find missed changes. */
export const CHECK_INTERVAL_SECONDS = 3_600;
/** The first delay between attempts to join. It doubles each time, since two devices may compete. */
const FIRST_JOIN_DELAY = 0.5;
const MAX_DELAY = 3_600;
/** The first delay between comparisons of the group info while the keys are unconfirmed. It doubles each time. */
const FIRST_CHECK_DELAY = 2;
/** After a losing commit of another member the group info is compared more often for ten minutes. */
const CONFLICT_SECONDS = 600;
/** Replacements of the group info are counted within two hours. */
const CONTESTED_SECONDS = 7_200;
/** After ten minutes in the group the delay between attempts to join starts again at its minimum. */
const STABLE_AFTER_SECONDS = 600;
const MAX_DOUBLINGS = 20;

/** A monotonic clock, in seconds. */
export type Clock = () => number;

/**
 * The schedule of a group. Times are those of `clock`.
 *
 * `at`: when to check the group. `infoAt`: when to compare the server's group info. `commitNeededSince`: since when a commit
 * is needed that several members could make. `hasLaterMessages`: a message of a later epoch was received. `otherEpoch`: the
 * own epoch at which the group info of another epoch was first seen, at `otherEpochSeenAt`. `readAt`: all messages up to
 * then were read. `joinSentAt`: when the last commit to join was made. `isCaughtUp`: all messages on the server at the start
 * were read. `hasReadAll`: all messages since the beginning of the epoch were read. `isNew`: the user has joined, and the
 * keys were not compared with the group info since then. `contested`: how often the group info of another branch was
 * replaced. `listed`, `admins`: members by the server's last list; null: not read yet. `unauthorized`: members who made a
 * change without the right to it.
 */
export class GroupAgenda {
  at: number | null = null;
  infoAt: number | null = null;
  commitNeededSince: number | null = null;
  strangerSince: number | null = null;
  isStrangerReported = false;
  hasLaterMessages = false;
  otherEpoch: number | null = null;
  otherEpochSeenAt = 0;
  readAt = -Infinity;
  joinSentAt = -Infinity;
  isCaughtUp = false;
  hasSent = false;
  isNew = false;
  hasReadAll = false;
  attempts = 0;
  infoUploadedEpoch: number | null = null;
  listed: ReadonlySet<Id> | null = null;
  admins: ReadonlySet<Id> = new Set();
  readonly unauthorized = new Set<Id>();
  contested = 0;
  readableCount = 0;
  unreadableCount = 0;
  unreadableCommits = 0;
  private enteredAt: number | null = null;
  private epoch = -1;
  private contestedAt = -Infinity;
  private fetchedAt = -Infinity;
  private conflictAt = -Infinity;
  private hasMissed = false;
  private missedEpoch = -1;
  private checks = 0;

  constructor(readonly clock: Clock) {}

  /** Records that the server has a group info of another epoch. Returns whether this is new. */
  recordOtherEpoch(epoch: number): boolean {
    const isNew = this.otherEpoch !== epoch;
    if (isNew) {
      this.otherEpoch = epoch;
      this.otherEpochSeenAt = this.clock();
    }
    return isNew;
  }

  /** Whether all messages were read that were on the server when that group info was seen. */
  hasReadPast(epoch: number): boolean {
    return this.otherEpoch === epoch && this.otherEpochSeenAt < this.readAt;
  }

  /** Records the start of a fetch. */
  recordFetch(): void {
    this.fetchedAt = this.clock();
  }

  /** Records that the last fetch returned no messages. */
  recordCaughtUp(): void {
    this.isCaughtUp = true;
    this.readAt = this.fetchedAt;
  }

  /** Sets members and admins by the server's list. Returns whether the members have changed. */
  updateMembers(group: ListedGroup): boolean {
    const former = this.listed;
    const listed = new Set(group.members.map((each) => each.user_id));
    this.listed = listed;
    this.admins = new Set(group.members.flatMap((each) => (each.role === "admin" ? [each.user_id] : [])));
    return former === null || former.size !== listed.size || [...listed].some((each) => !former.has(each));
  }

  /** Records a readable message. `sentIn`: the epoch in which it was encrypted. */
  recordReadable(epoch: number, sentIn: number): void {
    this.enterEpoch(epoch);
    this.clearGap(sentIn);
    this.readableCount += 1;
  }

  /** Records an unreadable message. `isForeign`: its sender may be in another branch. */
  recordUnreadable(epoch: number, isForeign: boolean): void {
    this.enterEpoch(epoch);
    this.unreadableCount += 1;
    if (!isForeign) this.unreadableCommits += 1;
    this.checkInfoSoon();
  }

  /** Records a commit that led into this epoch. `byOthers`: by a member who had the same keys. */
  recordCommit(epoch: number, byOthers = true): void {
    const hadReadAll = this.hasReadAll;
    this.enterEpoch(epoch);
    if (byOthers) this.clearGap(epoch - 1);
    this.hasReadAll = hadReadAll || (byOthers && !this.hasMissed);
    if (this.hasMissed) this.checks = 0;
  }

  /** Records that messages of this epoch were not read: they were deleted before. */
  recordGap(epoch: number): void {
    this.hasReadAll = false;
    this.hasMissed = true;
    this.missedEpoch = epoch;
    this.checks = 0;
  }

  /** Whether all messages since the beginning of the epoch were read, and no commit of a member was rejected. */
  get isComplete(): boolean {
    return this.hasReadAll && this.unreadableCommits === 0;
  }

  /** Schedules a comparison of the group info. `isOwn`: at once, since this client may have caused a difference. */
  checkInfoSoon(isOwn = false): void {
    this.checkInfo(isOwn ? 0 : SOON_SECONDS);
  }

  /** Schedules a comparison of the group info after some seconds. */
  checkInfo(after: number): void {
    this.infoAt = Math.min(this.infoAt ?? Infinity, this.clock() + after);
  }

  /** Returns the delay before the next comparison while the keys are unconfirmed. */
  nextCheckDelay(): number {
    this.checks += 1;
    return Math.min(FIRST_CHECK_DELAY * 2 ** Math.min(this.checks - 1, MAX_DOUBLINGS), MAX_DELAY);
  }

  /** Whether there is no sign that others are in another branch. */
  get isSettled(): boolean {
    return !this.hasMissed && this.contested === 0 && this.clock() - this.conflictAt >= CONFLICT_SECONDS;
  }

  /** Records a commit of a member that was not applied: it has lost, or belongs to another branch. */
  recordConflict(): void {
    this.conflictAt = this.clock();
    this.checks = 0;
    this.checkInfoSoon();
  }

  /** Records that this client replaces another member's group info. That client may do the same. */
  recordContest(): void {
    if (this.clock() - this.contestedAt > CONTESTED_SECONDS) this.contested = 0;
    this.contested += 1;
    this.contestedAt = this.clock();
    this.checks = 0;
  }

  /** An earlier member has sent a message with the same keys. */
  clearContest(): void {
    this.contested = 0;
  }

  /** Another device joined at the same time, which is not a failure. */
  resetAttempts(): void {
    this.attempts = 0;
  }

  /** Records that the user has the keys. `isNew`: the user joined a group of others. */
  recordEntry(epoch: number, isNew: boolean): void {
    this.isNew = isNew;
    this.hasMissed = false;
    this.recordCommit(epoch);
    this.hasLaterMessages = false;
    this.otherEpoch = null;
    this.enteredAt = this.clock();
    this.isCaughtUp = true;
    this.contested = this.checks = 0;
  }

  /** Returns the delay before the next attempt to join. */
  nextJoinDelay(): number {
    if (this.enteredAt !== null && this.clock() - this.enteredAt > STABLE_AFTER_SECONDS) this.attempts = 0;
    this.enteredAt = null;
    this.attempts += 1;
    return Math.min(FIRST_JOIN_DELAY * 2 ** Math.min(this.attempts - 1, MAX_DOUBLINGS), MAX_DELAY);
  }

  private clearGap(epoch: number): void {
    this.hasMissed &&= this.missedEpoch >= epoch;
  }

  private enterEpoch(epoch: number): void {
    if (epoch === this.epoch) return;
    this.epoch = epoch;
    this.readableCount = this.unreadableCount = this.unreadableCommits = 0;
    this.hasReadAll = false;
  }
}

/** The schedules of all groups. */
export class Agenda {
  private readonly groups = new Map<Id, GroupAgenda>();

  constructor(readonly clock: Clock = () => performance.now() / 1000) {}

  of(groupId: Id): GroupAgenda {
    let found = this.groups.get(groupId);
    if (!found) this.groups.set(groupId, (found = new GroupAgenda(this.clock)));
    return found;
  }

  /** Schedules a check of a group, by default soon. */
  schedule(groupId: Id, after = SOON_SECONDS): void {
    const agenda = this.of(groupId);
    agenda.at = Math.min(agenda.at ?? Infinity, this.clock() + after);
  }

  /** Returns the groups to check now. */
  due(): Id[] {
    const now = this.clock();
    return [...this.groups].flatMap(([groupId, each]) => (each.at !== null && each.at <= now ? [groupId] : []));
  }

  forget(groupId: Id): void {
    this.groups.delete(groupId);
  }
}
