/** What is kept of each group: how the user stands in it, which commits there were, and who came in when. */

import type { Id } from "../api";

const MOST_COMMITS = 256;
/** So many own commits are remembered by which the user asked into a group. */
const MOST_REQUESTS = 32;
/** So many users are remembered who have come into a group. */
const MOST_COMERS = 4_096;
/** So many messages that were sent anew are remembered of a group. */
const MOST_REPEATS = 256;

/**
 * How the user stands in a group. `out`: without keys. `awaiting`: with the state to which a commit leads that has not come
 * yet, an own external one or that of an invite. `in`: with the state of the group. `replaced`: another device of the
 * account took this one's place; it does not come in again before the user says so.
 */
export type Stage = "out" | "awaiting" | "in" | "replaced";

interface Comer {
  at: number;
  wasRemoved: boolean;
  isClaimed: boolean;
}

/**
 * A text that the user has sent, until it comes back; also later, as long as others may not have read it. `hash`: of the
 * payload. `epoch`: for which it was encrypted; NO_EPOCH: its keys were given up. `original`: the number under which it
 * came first; 0: it has not come. `again`: it is to be sent again, with this timer. `kept`: it came back, and others may
 * not have its keys; its timer. `isUnwanted`: the first was taken back. `text`: "" if that is gone.
 */
export interface OwnText {
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
 * `upTo`: messages up to this number were read, or will never be. `firstEpoch`: from which on the user has keys.
 * `enteredEpoch`: from which on the last one who came in has them. `missed`: messages that came while there were none.
 * `hadKeys`: the user had keys once, and lost them. `renewedAt`: when the own leaf was made. `welcome`: hash of the last
 * one that was taken. `baseTag`: of the epoch from which the own external commit went on; "": it was none. `enteredAt`: the
 * number of the commit by which the user came in; 0: the user began the group. `inSince`: when that came. `isDoubtful`: the
 * state may be an old copy, from which messages were sent that it does not know of. `confirmedBy`: an earlier member, of
 * whom a message with these keys was read; "": none yet.
 */
export class Held {
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
  /** Those that the state went through, or that came without one: number, epoch, tag. */
  commits: [number, number, string][] = [];
  requests: string[] = [];
  comers: Record<Id, Comer> = {};
  own: OwnText[] = [];
  lastKey = 0;
  /** Messages that were sent anew, and are here already. */
  repeats: { number: number; original: number; isOwn: boolean }[] = [];
  /** Own messages that are to be taken back, since what they repeat was. */
  unwanted: number[] = [];

  constructor(readonly groupId: Id) {}

  static load(stored: Held): Held {
    return Object.assign(new Held(stored.groupId), stored);
  }

  copy(): Held {
    return Held.load(structuredClone({ ...this }) as Held);
  }

  /** Whether no earlier member has shown yet that these are the keys of the others. */
  get isUnsure(): boolean {
    return this.confirmedBy === "";
  }

  awaits(epoch: number, tag: string, baseTag: string): void {
    this.stage = "awaiting";
    [this.awaitedEpoch, this.awaitedTag, this.baseTag] = [epoch, tag, baseTag];
  }

  /** Gives the state up. */
  leave(stage: Stage = "out"): void {
    this.hadKeys ||= this.stage === "in";
    this.stage = stage;
    [this.awaitedEpoch, this.awaitedTag, this.baseTag, this.confirmedBy, this.isDoubtful] = [0, "", "", "", false];
  }

  // Commits

  noteCommit(number: number, epoch: number, tag: string): void {
    if (!this.commits.some(([each]) => each === number)) this.commits.push([number, epoch, tag]);
    this.commits = this.commits.sort(([one], [other]) => one - other).slice(-MOST_COMMITS);
  }

  /** Number and tag of the first commit that is remembered for an epoch or a later one. */
  firstCommit(epoch: number): { number: number; tag: string } | null {
    const found = this.commits.find(([, each]) => each >= epoch);
    return found ? { number: found[0], tag: found[2] } : null;
  }

  /** The tag of the first commit that leads into an epoch; null if not known: another may have come before the user did. */
  commitInto(epoch: number): string | null {
    if (!this.commits.some(([, each]) => each < epoch - 1)) return null;
    return this.commits.find(([, each]) => each === epoch - 1)?.[2] || null;
  }

  /** Whether the state has been in the epoch with this confirmation tag, as far as that is remembered. */
  wentThrough(tag: string): boolean {
    return tag === this.baseTag || this.commits.some(([, , each]) => each === tag);
  }

  /** Remembers the tag of a commit by which this device asks in. */
  noteRequest(tag: string): void {
    this.requests = [...this.requests, tag].slice(-MOST_REQUESTS);
  }

  // Who came in, and when

  /**
   * Remembers that a user has come in by the message of that number. Tells whether it is somebody new: who was not there
   * before, or was removed. `isClaimed`: the message was not taken; its sender may not be there at all.
   */
  noteComer(userId: Id, number: number, isClaimed = false): boolean {
    const former = this.comers[userId];
    const isNew = !former || former.wasRemoved || former.isClaimed;
    this.comers[userId] = { at: number, wasRemoved: false, isClaimed: isClaimed && isNew };
    const all = Object.entries(this.comers);
    if (all.length > MOST_COMERS) {
      all.sort(([, one], [, other]) => Number(one.isClaimed) - Number(other.isClaimed) || other.at - one.at);
      this.comers = Object.fromEntries(all.slice(0, MOST_COMERS));
    }
    return isNew;
  }

  /**
   * Remembers who is there as the user comes in by the message of that number. Returns from which message on all of them
   * may have been there: who came unseen may have come just now.
   */
  noteThere(userIds: Iterable<Id>, number: number): number {
    let since = 0;
    for (const userId of userIds) {
      const former = this.comers[userId];
      if (former && !former.wasRemoved && !former.isClaimed) continue;
      since = Math.max(since, former?.isClaimed ? former.at : number);
      this.comers[userId] = { at: former?.at ?? 0, wasRemoved: false, isClaimed: false };
    }
    return since;
  }

  noteRemoved(userIds: Iterable<Id>): void {
    for (const userId of userIds) {
      const former = this.comers[userId];
      if (former) former.wasRemoved = true;
    }
  }

  /** Whether somebody has not come in after this device. */
  isSenior(userId: Id): boolean {
    return (this.comers[userId]?.at ?? 0) <= this.enteredAt;
  }

  noteRepeated(original: number, number: number, isOwn: boolean): void {
    if (this.repeats.some((each) => each.number === number)) return;
    this.repeats.push({ number, original, isOwn });
    this.repeats = this.repeats.sort((one, other) => one.number - other.number).slice(-MOST_REPEATS);
  }
}
