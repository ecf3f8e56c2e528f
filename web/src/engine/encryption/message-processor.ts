/**
 * Processes the messages of a group in the server's order: decrypts texts and applies commits. Of two commits for one epoch
 * the first wins. Rejected messages do not change the state.
 */

import type { Id } from "../api";
import { fromUtf8, hex, sha256 } from "../bytes";
import { MAX_PAST_EPOCHS } from "../mls/checks";
import { MlsError } from "../mls/errors";
import type { CommitEffect, Member, MlsGroup } from "../mls/group";
import { receive, type Received } from "../mls/receiving";
import { readHeader, type MessageHeader } from "../mls/wire";
import { SOON_SECONDS, type Agenda } from "./agenda";
import { checkRights, checkSender, UnauthorizedChangeError } from "./authorization";
import { NO_EPOCH, type GroupRecord, type SentText, type Stage } from "./group-record";
import * as texts from "./texts";
import type { GroupTransaction } from "./transaction";

/** A message from the server. */
export interface IncomingMessage {
  number: number;
  senderId: Id;
  payload: Uint8Array;
  createdAt: number;
  selfDestructSeconds: number;
}

/** A message to show. `text`: null if it cannot be read. `sendId`: of an own message that this device sent. */
export interface DecodedMessage {
  message: IncomingMessage;
  text: string | null;
  sendId?: string;
}

/** A client uploads its group info within two seconds after it has joined. */
const INFO_UPLOAD_SECONDS = 2;

const REPLACED =
  "Another device of your account has replaced this one: new messages cannot be read here. Reset your keys to use this" +
  " device. If you have no other device, someone knows your password: change it first.";
const REMOVED = "The first of these members removed the keys of the second.";
const RESTORED = "The keys on this device were an old copy and cannot be used. This device rejoins the group.";

export class MessageProcessor {
  constructor(
    private readonly userId: Id,
    private readonly agenda: Agenda,
    private readonly now: () => number,
  ) {}

  /** Processes a page of messages; returns those to show. */
  async process(tx: GroupTransaction, messages: readonly IncomingMessage[]): Promise<DecodedMessage[]> {
    const { record } = tx;
    const found: DecodedMessage[] = [];
    for (const message of messages) {
      const { number } = message;
      const own = message.senderId === this.userId ? texts.findSent(record, hex(await sha256(message.payload))) : undefined;
      if (record.upTo > 0 && number > record.upTo + 1) this.recordGap(tx, own !== undefined);
      const decoded = own ? this.processOwn(tx, own, message) : await this.processMessage(tx, message);
      if (decoded) found.push(decoded);
      record.upTo = Math.max(record.upTo, number);
    }
    return found;
  }

  /**
   * Records that messages were deleted before they were read. One of them may have been a commit. At the start, or if the
   * first own message (`isOwn`) follows the gap, they may also have been sent by this device: then its keys are an old copy.
   */
  recordGap(tx: GroupTransaction, isOwn = false): void {
    const { record, group } = tx;
    const agenda = this.agenda.of(record.groupId);
    agenda.recordGap(group?.epoch ?? -1);
    if (record.stage !== "in") return;
    if (!agenda.isCaughtUp || (isOwn && !agenda.hasSent)) record.isDoubtful = true;
    agenda.checkInfoSoon(record.isDoubtful);
    this.agenda.schedule(record.groupId, record.isDoubtful ? 0 : SOON_SECONDS);
  }

  private processOwn(tx: GroupTransaction, own: SentText, message: IncomingMessage): DecodedMessage | null {
    const { text, original, sendId } = own;
    if (!texts.isKept(own)) this.settleOwn(tx, own, message); // otherwise it was settled before
    return original === 0 || original === message.number ? { message, text, sendId } : null;
  }

  /** Drops a sent text that was fetched, or keeps it as long as others may be unable to read it. */
  private settleOwn(tx: GroupTransaction, own: SentText, { number, selfDestructSeconds }: IncomingMessage): void {
    const { record } = tx;
    const original = own.original;
    this.agenda.of(record.groupId).hasSent = true;
    texts.dropOtherAttempts(record, own);
    if (!own.text) texts.dropSent(record, own.key);
    else if (this.isTooLate(tx, own) || record.isDoubtful) texts.keepForResend(own, number, selfDestructSeconds);
    else if (!this.isConfirmed(record) || this.now() - record.inSince < texts.UNCONFIRMED_SECONDS)
      texts.keepUntilConfirmed(own, number, selfDestructSeconds);
    else texts.dropSent(record, own.key);
    if (original) {
      record.recordRepeat(original, number, true);
      texts.dropResent(record, own);
    }
    if (own.isUnwanted) texts.recordUnwanted(record, number);
  }

  /** Whether the keys are confirmed, and there is no sign of another branch. */
  isConfirmed(record: GroupRecord): boolean {
    return !record.isUnconfirmed && this.agenda.of(record.groupId).isSettled;
  }

  /** Whether a text was stored after its keys had expired, for all members or for those who joined since. */
  private isTooLate({ record, group }: GroupTransaction, own: SentText): boolean {
    if (own.epoch === NO_EPOCH) return true;
    if (!group || record.stage !== "in") return false;
    return own.epoch < record.enteredEpoch || group.epoch - own.epoch > MAX_PAST_EPOCHS;
  }

  private async processMessage(tx: GroupTransaction, message: IncomingMessage): Promise<DecodedMessage | null> {
    const { record, group: before } = tx;
    if (record.stage !== "in" || !before) {
      await this.processWithoutKeys(tx, message);
      return null;
    }
    try {
      const validate = (found: Received): void => {
        checkSender(found, message.senderId);
        checkRights(this.agenda.of(record.groupId), before, found);
      };
      const { group, received } = await receive(before, message.payload, validate);
      validate(received);
      tx.group = group;
      if (received.kind === "text") return await this.applyText(tx, before, received, message);
      await this.applyChange(tx, before, received, message);
      return null;
    } catch (error) {
      if (!(error instanceof MlsError)) throw error;
      if (error.kind === "notFromHere") {
        this.dropOutdatedState(tx);
        await this.processWithoutKeys(tx, message); // records the commit, which makes older group infos useless
        return null;
      }
      tx.group = before;
      return this.handleRejected(tx, before, message, error);
    }
  }

  private async applyText(
    tx: GroupTransaction,
    before: MlsGroup,
    received: Received & { kind: "text" },
    message: IncomingMessage,
  ): Promise<DecodedMessage | null> {
    let text: string;
    try {
      text = fromUtf8(received.data);
    } catch {
      return { message, text: null }; // from a member, but not UTF-8: its key is used
    }
    this.agenda.of(tx.groupId).recordReadable(before.epoch, received.epoch);
    this.confirmBy(tx.record, received.sender.userId);
    const original = texts.readOriginal(received.authenticatedData, message.number);
    if (tx.wasRead(original, message.senderId)) {
      tx.record.recordRepeat(original, message.number, false); // an admin may take both back
      return null;
    }
    tx.recordRead(original || message.number, message.senderId);
    return { message, text };
  }

  /** Updates the record after a commit or a proposal. */
  private async applyChange(tx: GroupTransaction, before: MlsGroup, received: Received, message: IncomingMessage): Promise<void> {
    const { record, group } = tx;
    const agenda = this.agenda.of(record.groupId);
    if (received.kind === "proposal") return this.agenda.schedule(record.groupId);
    if (received.kind !== "commit") return;
    const { effect, isOwn } = received;
    const number = record.upTo + 1;
    record.isDoubtful = false; // keys of the former epoch are not used again
    reportRemovals(tx, effect);
    if (effect.removedSelf || !group) {
      record.recordCommit(number, before.epoch, "");
      this.handleOwnRemoval(tx, effect.committer, message);
      return;
    }
    for (const member of [...effect.added, ...effect.updated, effect.committer]) await tx.recordKey(member);
    if (isOwn) record.renewedAt = this.now();
    const remaining = new Set(before.members().map((each) => each.userId));
    for (const each of effect.removed) remaining.delete(each.userId);
    const isExternal = !remaining.has(effect.committer.userId);
    record.recordCommit(number, before.epoch, group.tag);
    if (!isExternal) record.recordRemoved(effect.removed.map((each) => each.userId));
    for (const member of [...effect.added, ...(isExternal ? [effect.committer] : [])]) this.recordJoiner(record, member.userId, number);
    const byOthers = !isOwn && !isExternal;
    if (byOthers) this.confirmBy(record, effect.committer.userId);
    if (isExternal || effect.added.length > 0) record.enteredEpoch = group.epoch;
    // The group info of an external commit is uploaded after it, and may be lost.
    if (isExternal || agenda.infoUploadedEpoch === before.epoch) agenda.checkInfo(isExternal ? INFO_UPLOAD_SECONDS : SOON_SECONDS);
    agenda.recordCommit(group.epoch, byOthers);
    this.agenda.schedule(record.groupId);
  }

  /** Records that a user joined. Earlier texts are not sent again, so that a new member cannot read them. */
  private recordJoiner(record: GroupRecord, userId: Id, number: number): void {
    if (record.recordJoiner(userId, number)) texts.dropSentBefore(record, number);
    if (record.confirmedBy === userId) record.confirmedBy = "";
  }

  /** A member has the same keys: an earlier member confirms that they are those of the group. */
  private confirmBy(record: GroupRecord, userId: Id): void {
    if (!record.isSenior(userId)) return;
    record.confirmedBy = userId;
    this.agenda.of(record.groupId).clearContest();
  }

  /** Drops the state and rejoins, unless another device of the account has joined: both would rejoin forever. */
  private handleOwnRemoval(tx: GroupTransaction, committer: Member, message: IncomingMessage): void {
    if (committer.userId === this.userId) {
      const tag = readHeader(message.payload)?.tag;
      if (!tag || !tx.record.joinCommits.includes(tag)) return this.markReplaced(tx);
    }
    this.dropState(tx);
    this.agenda.schedule(tx.groupId);
  }

  /** Drops the state of a group. Texts that others may be unable to read are sent again later. */
  dropState(tx: GroupTransaction, stage: Stage = "out"): void {
    tx.record.dropState(stage);
    tx.group = null;
    texts.markKeysLost(tx.record);
  }

  /** Records that another device of the account has replaced this one. */
  markReplaced(tx: GroupTransaction): void {
    this.dropState(tx, "replaced");
    tx.notice("replaced", REPLACED);
  }

  /** Drops a state that is an old copy: its message keys would be used twice. */
  private dropOutdatedState(tx: GroupTransaction): void {
    this.dropState(tx);
    tx.notice("restored", RESTORED);
    this.agenda.schedule(tx.groupId);
  }

  // Rejected messages

  private handleRejected(tx: GroupTransaction, group: MlsGroup, message: IncomingMessage, error: MlsError): DecodedMessage | null {
    const { record } = tx;
    const header = readHeader(message.payload);
    const unreadable = { message, text: null };
    if (!header) return reportRefused(tx, message, "not an encrypted message");
    const agenda = this.agenda.of(record.groupId);
    this.recordPossibleJoiner(record, message, header);
    if (header.isCommit && message.senderId !== this.userId) agenda.recordConflict();
    if (error.kind === "stale") return this.handleOtherEpoch(tx, group, message, header);
    if (error.kind === "replayed") return message.number <= record.upTo ? null : reportRefused(tx, message, error.message);
    if (error instanceof UnauthorizedChangeError || error.kind === "unwanted") {
      agenda.unauthorized.add(message.senderId); // this client's keys are right
      this.agenda.schedule(record.groupId);
      return reportRefused(tx, message, error.message);
    }
    if (error.kind === "own") return header.isApplication ? unreadable : null;
    agenda.recordUnreadable(group.epoch, error.kind === "forged" || header.isApplication);
    this.agenda.schedule(record.groupId);
    if (message.senderId === this.userId) return header.isApplication ? unreadable : null;
    // A sender without keys here is in another branch, rejoins, and sends it again.
    if (error.kind === "forged" && !group.find(message.senderId)) return null;
    return reportRefused(tx, message, error.message);
  }

  /** Handles a message of an earlier or later epoch. */
  private handleOtherEpoch(tx: GroupTransaction, group: MlsGroup, message: IncomingMessage, header: MessageHeader): DecodedMessage | null {
    const { record } = tx;
    const agenda = this.agenda.of(record.groupId);
    this.agenda.schedule(record.groupId);
    if (header.epoch > group.epoch) {
      agenda.checkInfoSoon();
      agenda.hasLaterMessages ||= !agenda.isComplete;
      if (agenda.hasReadAll && !header.isApplication)
        return reportRefused(tx, message, "it is for a later epoch than that of the group");
      return header.isApplication ? { message, text: null } : null;
    }
    if (!header.isApplication) agenda.checkInfoSoon(message.senderId === this.userId);
    else if (header.epoch >= record.firstEpoch) return { message, text: null };
    else if (record.isUnconfirmed) agenda.checkInfoSoon(); // it is late, or the others are in another branch
    return null;
  }

  /** Records the sender of a rejected external commit, who may have joined another branch. */
  private recordPossibleJoiner(record: GroupRecord, message: IncomingMessage, header: MessageHeader): void {
    if (!header.isExternal || message.senderId === this.userId) return;
    record.recordJoiner(message.senderId, message.number, true);
    if (record.confirmedBy === message.senderId) record.confirmedBy = "";
  }

  // Without keys

  /** Records commits and counts unreadable messages while there are no keys. */
  private async processWithoutKeys(tx: GroupTransaction, message: IncomingMessage): Promise<void> {
    const { record } = tx;
    const header = readHeader(message.payload);
    if (!header?.isCommit) {
      if (message.senderId !== this.userId && (!header || header.isApplication)) record.missed += 1;
      return;
    }
    this.recordPossibleJoiner(record, message, header);
    record.recordCommit(message.number, header.epoch, header.tag);
    if (record.stage === "awaiting") await this.resolveAwaited(tx);
  }

  /** Drops the keys, and processes messages without them. */
  async skipMessages(tx: GroupTransaction, messages: readonly IncomingMessage[]): Promise<void> {
    this.dropState(tx);
    for (const message of messages) {
      await this.processWithoutKeys(tx, message);
      tx.record.upTo = Math.max(tx.record.upTo, message.number);
    }
  }

  /**
   * Enters the group if the awaited commit was fetched and is the first of its epoch. If another commit was first, drops
   * the state, and the user has to join again.
   */
  async resolveAwaited(tx: GroupTransaction): Promise<void> {
    const { record, group } = tx;
    const first = record.firstCommit(record.awaitedEpoch);
    if (!first || !group) return;
    // A losing commit may leave its group info on the server: a member who joined by it would be alone.
    const known = record.baseTag ? record.commitInto(record.awaitedEpoch) : null;
    const isFirst = first.tag !== "" && first.tag === record.awaitedTag && (known === null || known === record.baseTag);
    if (isFirst) await this.enter(tx, first.number);
    else this.dropState(tx);
    this.agenda.schedule(record.groupId);
  }

  /** Records that the user has the keys. `number`: of the commit by which the user joined; 0: the user created the group. */
  async enter(tx: GroupTransaction, number = 0): Promise<void> {
    const { record, group } = tx;
    if (!group) return;
    record.enteredAt = number;
    record.confirmedBy = number > 0 ? "" : this.userId;
    record.inSince = number > 0 ? this.now() : 0;
    record.commits = [];
    record.recordCommit(number, group.epoch - 1, group.tag);
    record.stage = "in";
    [record.awaitedEpoch, record.awaitedTag] = [0, ""];
    record.firstEpoch = record.enteredEpoch = group.epoch;
    const members = group.members();
    for (const member of members) await tx.recordKey(member);
    const present = members.map((each) => each.userId);
    texts.dropSentBefore(record, record.recordPresent(present, number));
    if (record.missed > 0) reportMissed(tx);
    record.missed = 0;
    record.hadKeys = true;
    const agenda = this.agenda.of(record.groupId);
    agenda.recordEntry(group.epoch, number > 0);
    agenda.checkInfoSoon(true);
    this.agenda.schedule(record.groupId);
  }
}

/** Adds notices about removed members, except those who replaced their own leaf. */
function reportRemovals(tx: GroupTransaction, { committer, removed }: CommitEffect): void {
  for (const { userId } of removed)
    if (userId !== committer.userId) tx.notice("removed", REMOVED, committer.userId, userId);
}

/** Adds a notice about a rejected message, which is not shown. */
function reportRefused(tx: GroupTransaction, message: IncomingMessage, why: string): null {
  tx.notice("refused", `An invalid message in this member's name was rejected: ${why}.`, message.senderId);
  return null;
}

function reportMissed(tx: GroupTransaction): void {
  const { missed, hadKeys } = tx.record;
  const count = `${missed} message${missed === 1 ? "" : "s"}`;
  if (hadKeys) tx.notice("returned", `This device rejoined with new keys. ${count} from the time without keys cannot be read.`);
  else tx.notice("joined", `You joined this group. ${count} from before cannot be read.`);
}
