/**
 * Reads what the server hands out, in its order: messages, and the commits that change whose keys can read them. Of two
 * commits for one epoch the first counts. Nothing that is refused leaves a trace in the state.
 */

import type { Id } from "../api";
import { fromUtf8, hex, idOf, sha256, utf8 } from "../bytes";
import { identityOf, MOST_PAST } from "../mls/checks";
import { invalid, MlsError } from "../mls/errors";
import type { Effect, Member, MlsGroup } from "../mls/group";
import { receive, type Received } from "../mls/receiving";
import { readHeader, type Header } from "../mls/wire";
import { SOON, type Agenda } from "./agenda";
import type { Draft } from "./draft";
import { NO_EPOCH, type Held, type OwnText, type Stage } from "./held";
import * as texts from "./texts";

/** A message as the server has it. */
export interface Arrived {
  number: number;
  senderId: Id;
  payload: Uint8Array;
  createdAt: number;
  selfDestructSeconds: number;
}

/** A message for people. `text`: null if it cannot be read. `sendId`: by which it was sent from here; "": it was not. */
export interface Readable {
  message: Arrived;
  text: string | null;
  sendId?: string;
}

/** A client that came in has uploaded its group info within two seconds. */
const INFO_FOLLOWS = 2;

export const REPLACED =
  "Another device has taken the place of this one in this group, under your name: what is said now cannot be read here." +
  " New keys bring this device back, and put the other one out. If you have no other device, somebody has your password:" +
  " change it first.";
const REMOVED = "This member's client has taken the keys of a member out of the group.";
const RESTORED =
  "The keys on this device are an old copy: more was sent with them than they know of. They are not used any more, and" +
  " this device comes in again.";

class NoRightError extends MlsError {
  constructor(text: string) {
    super("invalid", text);
  }
}

export class Order {
  constructor(
    private readonly userId: Id,
    private readonly agenda: Agenda,
    private readonly now: () => number,
  ) {}

  /** Takes a page; returns what of it is for people. */
  async read(draft: Draft, messages: readonly Arrived[]): Promise<Readable[]> {
    const { held } = draft;
    const found: Readable[] = [];
    for (const message of messages) {
      const { number } = message;
      const own = message.senderId === this.userId ? texts.findOwn(held, hex(await sha256(message.payload))) : undefined;
      if (held.upTo > 0 && number > held.upTo + 1) this.misses(draft, own !== undefined);
      const readable = own ? this.takeOwn(draft, own, message) : await this.take(draft, message);
      if (readable) found.push(readable);
      held.upTo = Math.max(held.upTo, number);
    }
    return found;
  }

  /**
   * Notes that messages are gone that were not read here. One of them may have been a commit. At the start, or where the
   * first own text (`isOwn`) comes back after them, they may also have been sent from here, and these keys are an old copy.
   */
  misses(draft: Draft, isOwn = false): void {
    const { held, group } = draft;
    const agenda = this.agenda.of(held.groupId);
    agenda.misses(group?.epoch ?? -1);
    if (held.stage !== "in") return;
    if (!agenda.isCaughtUp || (isOwn && !agenda.hasSent)) held.isDoubtful = true;
    agenda.doubtInfo(held.isDoubtful);
    this.agenda.want(held.groupId, held.isDoubtful ? 0 : SOON);
  }

  private takeOwn(draft: Draft, own: OwnText, message: Arrived): Readable | null {
    const { text, original, sendId } = own;
    if (!texts.isKept(own)) this.putOwn(draft, own, message); // or it comes once more
    return original === 0 || original === message.number ? { message, text, sendId } : null;
  }

  /** Erases a text that is here as a message now, or keeps it as long as others may not have read it. */
  private putOwn(draft: Draft, own: OwnText, { number, selfDestructSeconds }: Arrived): void {
    const { held } = draft;
    const original = own.original;
    this.agenda.of(held.groupId).hasSent = true;
    texts.dropOtherTries(held, own);
    if (!own.text) texts.dropOwn(held, own.key);
    else if (this.isTooLate(draft, own) || held.isDoubtful) texts.keepToSendAgain(own, number, selfDestructSeconds);
    else if (!this.isSure(held) || this.now() - held.inSince < texts.UNSURE_SECONDS)
      texts.keepUntilSure(own, number, selfDestructSeconds);
    else texts.dropOwn(held, own.key);
    if (original) {
      held.noteRepeated(original, number, true);
      texts.hasComeAgain(held, own);
    }
    if (own.isUnwanted) texts.noteUnwanted(held, number);
  }

  /** Whether nothing says that the others may have other keys. */
  isSure(held: Held): boolean {
    return !held.isUnsure && this.agenda.of(held.groupId).isSettled;
  }

  /** Whether a text came after its keys had passed: for everybody, or for some who have come in since. */
  private isTooLate({ held, group }: Draft, own: OwnText): boolean {
    if (own.epoch === NO_EPOCH) return true;
    if (!group || held.stage !== "in") return false;
    return own.epoch < held.enteredEpoch || group.epoch - own.epoch > MOST_PAST;
  }

  private async take(draft: Draft, message: Arrived): Promise<Readable | null> {
    const { held, group: before } = draft;
    if (held.stage !== "in" || !before) {
      await this.passBy(draft, message);
      return null;
    }
    try {
      const judge = (found: Received): void => {
        checkSender(found, message.senderId);
        this.checkRights(draft, before, found);
      };
      const { group, received } = await receive(before, message.payload, judge);
      judge(received);
      draft.group = group;
      if (received.kind === "text") return await this.hearText(draft, before, received, message);
      await this.taken(draft, before, received, message);
      return null;
    } catch (error) {
      if (!(error instanceof MlsError)) throw error;
      if (error.kind === "notFromHere") {
        this.giveUpOld(draft);
        await this.passBy(draft, message); // by it the group has gone on: a group info from before leads to nobody
        return null;
      }
      draft.group = before;
      return this.notTaken(draft, before, message, error);
    }
  }

  private async hearText(
    draft: Draft,
    before: MlsGroup,
    received: Received & { kind: "text" },
    message: Arrived,
  ): Promise<Readable | null> {
    let text: string;
    try {
      text = fromUtf8(received.data);
    } catch {
      return { message, text: null }; // it is a member's, but no text: the key is used up
    }
    this.agenda.of(draft.groupId).readsOthers(before.epoch, received.epoch);
    this.hears(draft.held, received.sender.userId);
    const original = originalOf(received.authenticatedData, message.number);
    if (draft.hasHeard(original, message.senderId)) {
      draft.held.noteRepeated(original, message.number, false); // an admin may take both back
      return null;
    }
    draft.hear(original || message.number, message.senderId);
    return { message, text };
  }

  /**
   * Checks that who changes the members may do so, by the server's list as it is now. Admins may. Every member may remove
   * those who are not on the list, its own leaf, and add those who are on it. A proposal is judged when it comes.
   */
  private checkRights(draft: Draft, before: MlsGroup, received: Received): void {
    const { added, removed, by } = changesOf(before, received);
    const { listed, admins } = this.agenda.of(draft.groupId);
    if (by === null || listed === null || admins.has(by)) return;
    if (removed.some((each) => listed.has(each) && each !== by))
      throw new NoRightError("it removes a member, and only an admin may do that");
    if (added.some((each) => !listed.has(each)))
      throw new NoRightError("it adds somebody who is no member, and only an admin may do that");
  }

  /** Goes on from a change of the group. */
  private async taken(draft: Draft, before: MlsGroup, received: Received, message: Arrived): Promise<void> {
    const { held, group } = draft;
    const agenda = this.agenda.of(held.groupId);
    if (received.kind === "proposal") return this.agenda.want(held.groupId);
    if (received.kind !== "commit") return;
    const { effect, isOwn } = received;
    const number = held.upTo + 1;
    held.isDoubtful = false; // what was sent in the epoch that is over does not matter any more
    tellRemoved(draft, effect);
    if (effect.removedSelf || !group) {
      held.noteCommit(number, before.epoch, "");
      this.removed(draft, effect.committer, message);
      return;
    }
    for (const member of [...effect.added, ...effect.updated, effect.committer]) await draft.meet(member);
    if (isOwn) held.renewedAt = this.now();
    const stay = new Set(before.members().map((each) => each.userId));
    for (const each of effect.removed) stay.delete(each.userId);
    const cameByItself = !stay.has(effect.committer.userId);
    held.noteCommit(number, before.epoch, group.tag);
    if (!cameByItself) held.noteRemoved(effect.removed.map((each) => each.userId));
    for (const member of [...effect.added, ...(cameByItself ? [effect.committer] : [])]) this.comes(held, member.userId, number);
    const byOthers = !isOwn && !cameByItself;
    if (byOthers) this.hears(held, effect.committer.userId);
    if (cameByItself || effect.added.length > 0) held.enteredEpoch = group.epoch;
    // The group info of an external commit may be uploaded after it, and be lost.
    if (cameByItself || agenda.uploadedAtEpoch === before.epoch) agenda.checkInfo(cameByItself ? INFO_FOLLOWS : SOON);
    agenda.changed(group.epoch, byOthers);
    this.agenda.want(held.groupId);
  }

  /** Notes that somebody has come in. Who is new gets nothing that was said before, nor by its being sent again. */
  private comes(held: Held, userId: Id, number: number): void {
    if (held.noteComer(userId, number)) texts.dropSaidBefore(held, number);
    if (held.confirmedBy === userId) held.confirmedBy = "";
  }

  /** A member has the same keys: who was there before shows that they are those of the others. */
  private hears(held: Held, userId: Id): void {
    if (!held.isSenior(userId)) return;
    held.confirmedBy = userId;
    this.agenda.of(held.groupId).agrees();
  }

  /** Goes on without keys: to ask in again, unless another device of the account is in now. Both would for ever. */
  private removed(draft: Draft, committer: Member, message: Arrived): void {
    if (committer.userId === this.userId) {
      const tag = readHeader(message.payload)?.tag;
      if (!tag || !draft.held.requests.includes(tag)) return this.replaced(draft);
    }
    this.giveUp(draft);
    this.agenda.want(draft.groupId);
  }

  /** Gives the state of a group up, whose texts others may not have read. */
  giveUp(draft: Draft, stage: Stage = "out"): void {
    draft.held.leave(stage);
    draft.group = null;
    texts.giveUpKeys(draft.held);
  }

  /** Another device of the account has taken this one's place. */
  replaced(draft: Draft): void {
    this.giveUp(draft, "replaced");
    draft.notice("replaced", REPLACED);
  }

  /** Gives up a state that others have gone on from: by it, keys of messages would be used twice. */
  giveUpOld(draft: Draft): void {
    this.giveUp(draft);
    draft.notice("restored", RESTORED);
    this.agenda.want(draft.groupId);
  }

  // What is not taken

  private notTaken(draft: Draft, group: MlsGroup, message: Arrived, error: MlsError): Readable | null {
    const { held } = draft;
    const header = readHeader(message.payload);
    const unreadable = { message, text: null };
    if (!header) return refuse(draft, message, "it is not encrypted, or not a message at all");
    const agenda = this.agenda.of(held.groupId);
    this.noteComers(held, message, header);
    if (header.isCommit && message.senderId !== this.userId) agenda.suspects();
    if (error.kind === "stale") return this.passed(draft, group, message, header);
    if (error.kind === "replayed") return message.number <= held.upTo ? null : refuse(draft, message, error.message);
    if (error instanceof NoRightError || error.kind === "unwanted") {
      agenda.withoutRight.add(message.senderId); // nothing is wrong with this client's keys
      this.agenda.want(held.groupId);
      return refuse(draft, message, error.message);
    }
    if (error.kind === "own") return header.isApplication ? unreadable : null;
    agenda.failsToRead(group.epoch, error.kind === "forged" || header.isApplication);
    this.agenda.want(held.groupId);
    if (message.senderId === this.userId) return header.isApplication ? unreadable : null;
    // Who has no keys here has others, gives way, and sends it again.
    if (error.kind === "forged" && !group.find(message.senderId)) return null;
    return refuse(draft, message, error.message);
  }

  /** Goes on from a message of an epoch that is over, or that the group has not reached. */
  private passed(draft: Draft, group: MlsGroup, message: Arrived, header: Header): Readable | null {
    const { held } = draft;
    const agenda = this.agenda.of(held.groupId);
    this.agenda.want(held.groupId);
    if (header.epoch > group.epoch) {
      agenda.doubtInfo();
      agenda.ahead ||= !agenda.knowsAll;
      if (agenda.hasReadAll && !header.isApplication)
        return refuse(draft, message, "it is for an epoch that the group has not reached");
      return header.isApplication ? { message, text: null } : null;
    }
    if (!header.isApplication) agenda.doubtInfo(message.senderId === this.userId);
    else if (header.epoch >= held.firstEpoch) return { message, text: null };
    else if (held.isUnsure) agenda.doubtInfo(); // it may be late, or the others are in another epoch
    return null;
  }

  /** Notes who comes in by a commit that was not taken: into another branch, if it is anything. */
  private noteComers(held: Held, message: Arrived, header: Header): void {
    if (!header.isExternal || message.senderId === this.userId) return;
    held.noteComer(message.senderId, message.number, true);
    if (held.confirmedBy === message.senderId) held.confirmedBy = "";
  }

  // Without keys

  /** Looks at a message without the keys: only which commits there are, and how much cannot be read. */
  private async passBy(draft: Draft, message: Arrived): Promise<void> {
    const { held } = draft;
    const header = readHeader(message.payload);
    if (!header?.isCommit) {
      if (message.senderId !== this.userId && (!header || header.isApplication)) held.missed += 1;
      return;
    }
    this.noteComers(held, message, header);
    held.noteCommit(message.number, header.epoch, header.tag);
    if (held.stage === "awaiting") await this.decide(draft);
  }

  /** Gives the keys up, and looks at messages without them. */
  async passOver(draft: Draft, messages: readonly Arrived[]): Promise<void> {
    this.giveUp(draft);
    for (const message of messages) {
      await this.passBy(draft, message);
      draft.held.upTo = Math.max(draft.held.upTo, message.number);
    }
  }

  /**
   * Enters the group if the commit that is awaited has come, and is the first of its epoch. If another one has come first,
   * it is void, and the user has to ask in again.
   */
  async decide(draft: Draft): Promise<void> {
    const { held, group } = draft;
    const first = held.firstCommit(held.awaitedEpoch);
    if (!first || !group) return;
    // A commit that lost against another one has left its group info: who comes in by that would be alone.
    const known = held.baseTag ? held.commitInto(held.awaitedEpoch) : null;
    const isFirst = first.tag !== "" && first.tag === held.awaitedTag && (known === null || known === held.baseTag);
    if (isFirst) await this.enter(draft, first.number);
    else this.giveUp(draft);
    this.agenda.want(held.groupId);
  }

  /** The user has the keys from here on. `number`: of the commit which leads there; 0: the user has begun the group. */
  async enter(draft: Draft, number = 0): Promise<void> {
    const { held, group } = draft;
    if (!group) return;
    held.enteredAt = number;
    held.confirmedBy = number > 0 ? "" : this.userId;
    held.inSince = number > 0 ? this.now() : 0;
    held.commits = [];
    held.noteCommit(number, group.epoch - 1, group.tag);
    held.stage = "in";
    [held.awaitedEpoch, held.awaitedTag] = [0, ""];
    held.firstEpoch = held.enteredEpoch = group.epoch;
    const members = group.members();
    for (const member of members) await draft.meet(member);
    const there = members.map((each) => each.userId);
    texts.dropSaidBefore(held, held.noteThere(there, number));
    if (held.missed > 0) tellCame(draft);
    held.missed = 0;
    held.hadKeys = true;
    const agenda = this.agenda.of(held.groupId);
    agenda.entered(group.epoch, number > 0);
    agenda.doubtInfo(true);
    this.agenda.want(held.groupId);
  }
}

/** Checks that a message is from the user whom the server names (RFC 9420, 5.3.1). */
function checkSender(received: Received, senderId: Id): void {
  const sender = received.kind === "commit" ? received.effect.committer : received.sender;
  if (sender && sender.userId !== senderId) throw invalid("it is signed by another member than the one whom the server names");
}

/** Whom a change adds and removes, and who needs the right to that; null: it is no change. */
function changesOf(before: MlsGroup, received: Received): { added: Id[]; removed: Id[]; by: Id | null } {
  if (received.kind === "commit" && !received.isOwn) {
    const { effect } = received;
    const ids = (members: readonly Member[]): Id[] =>
      members.filter((each) => !effect.proposed.includes(each)).map((each) => each.userId); // each change by itself, not by who it is about
    return { added: ids(effect.added), removed: ids(effect.removed), by: effect.committer.userId };
  }
  if (received.kind === "proposal" && received.sender) {
    const { proposal } = received;
    const added = "add" in proposal ? [idOf(identityOf(proposal.add.keyPackage.leafNode))] : [];
    const gone = "remove" in proposal ? before.members().find((each) => each.index === proposal.remove.removed) : undefined;
    return { added, removed: gone ? [gone.userId] : [], by: received.sender.userId };
  }
  return { added: [], removed: [], by: null };
}

const AGAIN = "again ";
/** Digits of a message's number. */
const LONGEST_NUMBER = 15;

/** What a message that is sent again says in the clear: under which number it came first. */
export const inTheClear = (original: number): Uint8Array => utf8(`${AGAIN}${original}`);

/** Under which number, less than its own, a message came first; 0 if it does not say so. */
function originalOf(authenticatedData: Uint8Array, number: number): number {
  const text = new TextDecoder().decode(authenticatedData);
  const digits = text.startsWith(AGAIN) ? text.slice(AGAIN.length) : "";
  if (!/^[0-9]+$/.test(digits) || digits.length > LONGEST_NUMBER) return 0;
  return Number(digits) < number ? Number(digits) : 0;
}

/** Tells who has removed whom, unless somebody has replaced an own leaf. */
function tellRemoved(draft: Draft, { committer, removed }: Effect): void {
  for (const { userId } of removed)
    if (userId !== committer.userId) draft.notice("removed", REMOVED, committer.userId, userId);
}

/** Says that something was refused; it is for nobody. */
function refuse(draft: Draft, message: Arrived, why: string): null {
  draft.notice("refused", `Something that seems to come from this member was refused: ${why}.`, message.senderId);
  return null;
}

function tellCame(draft: Draft): void {
  const { missed, hadKeys } = draft.held;
  const count = `${missed} message${missed === 1 ? "" : "s"}`;
  if (hadKeys) draft.notice("returned", `You are back with new keys: ${count} of the time without them cannot be read.`);
  else draft.notice("joined", `You came in here: ${count} from before cannot be read.`);
}
