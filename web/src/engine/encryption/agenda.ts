/** What is to be done in which group, and when: in memory only, since it follows anew from the state at each start. */

import type { Id } from "../api";
import type { ListedGroup } from "../server/wire";

/** Several changes that come together are looked at once, after 0.2 seconds. */
export const SOON = 0.2;
/** Every group is looked at once an hour: for keys that are to be renewed, and for what was missed. */
export const ROUND_SECONDS = 3_600;
/** Who cannot come in tries again after half a second, and twice as long each time: two devices may be at odds. */
const FIRST_WAIT = 0.5;
const LONGEST_WAIT = 3_600;
/** Who is unsure compares the server's group info after two seconds, and after twice as long each time. */
const UNSURE_FIRST = 2;
/** For ten minutes after another member's commit that does not count the group info is compared several times. */
const SUSPECT_SECONDS = 600;
/** What others told two hours ago is no sign any more that they are in another branch. */
const CONTESTED_SECONDS = 7_200;
/** Who has stayed in for ten minutes begins at half a second again. */
const CALM_SECONDS = 600;
const MOST_DOUBLINGS = 20;

/** Seconds that only go forward. */
export type Clock = () => number;

/**
 * A group. Times are those of the clock. `at`: when to look at it. `infoAt`: when to compare the server's group info.
 * `neededSince`: since when something waits that several members could do. `ahead`: something came of an epoch that this
 * client is not in. `claimed`: the own epoch in which a group info of another one was seen first, at `claimedAt`.
 * `isCaughtUp`: all that was at the server at the start was read. `hasReadAll`: everything since the epoch began was.
 * `isNew`: the user has come in, and the keys were not compared with the server's group info since then. `contested`: how
 * often something of another branch was replaced. `listed`, `admins`: of the server's list as it was read last; null: not
 * yet. `withoutRight`: members who have made a change that they had no right to.
 */
export class GroupAgenda {
  at: number | null = null;
  infoAt: number | null = null;
  neededSince: number | null = null;
  strangerSince: number | null = null;
  isStrangerTold = false;
  ahead = false;
  claimed: number | null = null;
  claimedAt = 0;
  readAt = -Infinity;
  askedAt = -Infinity;
  isCaughtUp = false;
  hasSent = false;
  isNew = false;
  hasReadAll = false;
  attempts = 0;
  uploadedAtEpoch: number | null = null;
  listed: ReadonlySet<Id> | null = null;
  admins: ReadonlySet<Id> = new Set();
  readonly withoutRight = new Set<Id>();
  contested = 0;
  good = 0;
  bad = 0;
  badCommits = 0;
  private enteredAt: number | null = null;
  private epoch = -1;
  private contestedAt = -Infinity;
  private fetchedAt = -Infinity;
  private suspectedAt = -Infinity;
  private hasMissed = false;
  private missedIn = -1;
  private looks = 0;

  constructor(readonly clock: Clock) {}

  /** A group info of another epoch than the own one is at the server. Tells whether that is new. */
  claims(epoch: number): boolean {
    const isNew = this.claimed !== epoch;
    if (isNew) {
      this.claimed = epoch;
      this.claimedAt = this.clock();
    }
    return isNew;
  }

  /** Whether all was read that was there when such a group info was seen: before that, one may only be behind. */
  hasFollowed(epoch: number): boolean {
    return this.claimed === epoch && this.claimedAt < this.readAt;
  }

  /** A page of messages is asked for next. */
  fetches(): void {
    this.fetchedAt = this.clock();
  }

  /** The page that was asked for last was empty. */
  caughtUp(): void {
    this.isCaughtUp = true;
    this.readAt = this.fetchedAt;
  }

  /** Takes members and admins as the server lists them now. Tells whether there are other members. */
  takeList(group: ListedGroup): boolean {
    const former = this.listed;
    const listed = new Set(group.members.map((each) => each.user_id));
    this.listed = listed;
    this.admins = new Set(group.members.flatMap((each) => (each.role === "admin" ? [each.user_id] : [])));
    return former === null || former.size !== listed.size || [...listed].some((each) => !former.has(each));
  }

  /** A message could be read in this epoch, which was encrypted in that or an earlier one. */
  readsOthers(epoch: number, sentIn: number): void {
    this.begin(epoch);
    this.shown(sentIn);
    this.good += 1;
  }

  /** A message could not be read: it is rubbish, or this client has lost the way. `isForeign`: its sender may have. */
  failsToRead(epoch: number, isForeign: boolean): void {
    this.begin(epoch);
    this.bad += 1;
    if (!isForeign) this.badCommits += 1;
    this.doubtInfo();
  }

  /** A commit has led into this epoch. `byOthers`: by a member who was in, and so was where this client was. */
  changed(epoch: number, byOthers = true): void {
    const hadReadAll = this.hasReadAll;
    this.begin(epoch);
    if (byOthers) this.shown(epoch - 1);
    this.hasReadAll = hadReadAll || (byOthers && !this.hasMissed);
    if (this.hasMissed) this.looks = 0;
  }

  /** Something was not read in this epoch: it had gone before, or is for others. */
  misses(epoch: number): void {
    this.hasReadAll = false;
    this.hasMissed = true;
    this.missedIn = epoch;
    this.looks = 0;
  }

  /** Whether all was read since the epoch began, and nothing of its members was refused. */
  get knowsAll(): boolean {
    return this.hasReadAll && this.badCommits === 0;
  }

  /** The server's group info may be a wrong one. `isOwn`: by this client's doing, so it looks at once. */
  doubtInfo(isOwn = false): void {
    this.checkInfo(isOwn ? 0 : SOON);
  }

  /** Compares the server's group info after so many seconds. */
  checkInfo(after: number): void {
    this.infoAt = Math.min(this.infoAt ?? Infinity, this.clock() + after);
  }

  /** How long to wait before it is compared again as long as it is not known who is right. */
  nextLook(): number {
    this.looks += 1;
    return Math.min(UNSURE_FIRST * 2 ** Math.min(this.looks - 1, MOST_DOUBLINGS), LONGEST_WAIT);
  }

  /** Whether nothing says that others may be in another branch. */
  get isSettled(): boolean {
    return !this.hasMissed && this.contested === 0 && this.clock() - this.suspectedAt >= SUSPECT_SECONDS;
  }

  /** A member has made a commit that does not count here: it has lost, or it counts in another branch. */
  suspects(): void {
    this.suspectedAt = this.clock();
    this.looks = 0;
    this.doubtInfo();
  }

  /** The group info of another member is replaced: that client may do the same. */
  contest(): void {
    if (this.clock() - this.contestedAt > CONTESTED_SECONDS) this.contested = 0;
    this.contested += 1;
    this.contestedAt = this.clock();
    this.looks = 0;
  }

  /** An earlier member has sent something with the same keys. */
  agrees(): void {
    this.contested = 0;
  }

  /** Another one has come in at the same moment: that is no failure. */
  isLate(): void {
    this.attempts = 0;
  }

  /** The user has the keys. `isNew`: of a group of others. */
  entered(epoch: number, isNew: boolean): void {
    this.isNew = isNew;
    this.hasMissed = false;
    this.changed(epoch);
    this.ahead = false;
    this.claimed = null;
    this.enteredAt = this.clock();
    this.isCaughtUp = true;
    this.contested = this.looks = 0;
  }

  /** How long to wait before the user asks in again. */
  wait(): number {
    if (this.enteredAt !== null && this.clock() - this.enteredAt > CALM_SECONDS) this.attempts = 0;
    this.enteredAt = null;
    this.attempts += 1;
    return Math.min(FIRST_WAIT * 2 ** Math.min(this.attempts - 1, MOST_DOUBLINGS), LONGEST_WAIT);
  }

  private shown(epoch: number): void {
    this.hasMissed &&= this.missedIn >= epoch;
  }

  private begin(epoch: number): void {
    if (epoch === this.epoch) return;
    this.epoch = epoch;
    this.good = this.bad = this.badCommits = 0;
    this.hasReadAll = false;
  }
}

/** All groups. */
export class Agenda {
  private readonly groups = new Map<Id, GroupAgenda>();

  constructor(readonly clock: Clock = () => performance.now() / 1000) {}

  of(groupId: Id): GroupAgenda {
    let found = this.groups.get(groupId);
    if (!found) this.groups.set(groupId, (found = new GroupAgenda(this.clock)));
    return found;
  }

  /** Looks at a group soon, or after so many seconds. */
  want(groupId: Id, after = SOON): void {
    const agenda = this.of(groupId);
    agenda.at = Math.min(agenda.at ?? Infinity, this.clock() + after);
  }

  /** The groups that are to be looked at now. */
  due(): Id[] {
    const now = this.clock();
    return [...this.groups].flatMap(([groupId, each]) => (each.at !== null && each.at <= now ? [groupId] : []));
  }

  forget(groupId: Id): void {
    this.groups.delete(groupId);
  }
}
