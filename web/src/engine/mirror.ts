/** Mirrors the state of the server: fetches new messages, and erases those that are gone. */

import type { Id } from "./api";
import { fromBase64 } from "./bytes";
import type { Encryption } from "./encryption/encryption";
import type { DecodedMessage, IncomingMessage } from "./encryption/message-processor";
import type { Entry, History, NewMessage } from "./history";
import type { ServerClock } from "./server/clock";
import { Code, hasCode, isNotMember, NoAnswerError } from "./server/errors";
import type { Server } from "./server/server";
import type { ListedGroup, ListedInvite, Retention, StoredMessage } from "./server/wire";
import { Batch, type Vault } from "./store/vault";

/** Callbacks of a mirror. */
export interface MirrorObserver {
  /** `isLive`: the messages are new on the server, not only missed here. */
  onMessages(groupId: Id, entries: readonly Entry[], isLive: boolean): void;
  /** An own message was fetched. */
  onOwnMessage(groupId: Id, sendId: Id, number: number, batch: Batch): void;
  /** Returns own messages that the server has accepted and that were not fetched yet. */
  acceptedSends(groupId: Id): Id[];
  /** Accepted messages expired before they were fetched. */
  onSendsExpired(groupId: Id, sendIds: readonly Id[]): Promise<void>;
  onPolicyChange(groupId: Id, former: Retention | undefined, now: Retention): void;
  /** Whether a text mentions the user. */
  isMention(groupId: Id, text: string): boolean;
  onChange(): void;
  onGroupRemoved(groupId: Id): void;
}

export class Mirror {
  /** The user's groups as the server lists them, in the order of joining. */
  listed = new Map<Id, ListedGroup>();
  invites: ListedInvite[] = [];
  readonly retentions = new Map<Id, Retention>();
  private readonly caughtUp = new Set<Id>();
  private lastRequest = 0;
  private lastResponse = 0;
  private readonly lastNumbers = new Map<Id, number>();

  constructor(
    private readonly server: Server,
    private readonly vault: Vault,
    private readonly history: History,
    private readonly keys: Encryption,
    private readonly clock: ServerClock,
    private readonly observer: MirrorObserver,
  ) {}

  /** Reads the stored groups and policies. */
  async open(): Promise<void> {
    const stored = (await this.vault.get<ListedGroup[]>(["listed"])) ?? [];
    this.listed = new Map(stored.map((each) => [each.group_id, each]));
    const keys = this.vault.keys("retention");
    const found = await this.vault.getAll<Retention>(keys);
    keys.forEach((key, at) => this.retentions.set(String(key[1]), found[at]!));
  }

  isCaughtUp(groupId: Id): boolean {
    return this.caughtUp.has(groupId);
  }

  /** Reads the whole state, and fetches missed messages. */
  async catchUp(): Promise<void> {
    const known = new Set([...this.history.ids(), ...this.keys.ids()]);
    const groups = await this.readGroups();
    for (const groupId of known) if (!this.listed.has(groupId)) await this.removeGroup(groupId);
    this.invites = await this.server.invites();
    this.observer.onChange();
    await this.processWelcomes();
    const deleted = new Map<Id, boolean>();
    for (const group of groups) {
      const groupId = group.group_id;
      const members = new Set(group.members.map((each) => each.user_id));
      const senders = new Set(this.history.group(groupId).entries.map((each) => each.senderId));
      await this.eraseDeletedSenders(groupId, [...senders].filter((each) => !members.has(each)), deleted);
      await this.refresh(groupId);
      this.keys.agenda.schedule(groupId);
    }
    await this.reportReads();
  }

  /** Reads the list of the user's groups. */
  async readGroups(): Promise<ListedGroup[]> {
    const number = ++this.lastRequest;
    const groups = await this.server.groups();
    if (number > this.lastResponse) await this.setGroups(groups); // a late response must not undo a newer one
    this.lastResponse = Math.max(this.lastResponse, number);
    return groups;
  }

  private async setGroups(groups: readonly ListedGroup[]): Promise<void> {
    const former = JSON.stringify([...this.listed.values()]);
    this.listed = new Map(groups.map((each) => [each.group_id, each]));
    this.keys.updateMembers(groups);
    if (JSON.stringify(groups) !== former) await this.vault.write(new Batch().put(["listed"], groups));
    this.observer.onChange();
  }

  async readInvites(): Promise<void> {
    this.invites = await this.server.invites();
    this.observer.onChange();
  }

  /** Reads a group's policy, and fetches new messages. */
  async refresh(groupId: Id): Promise<void> {
    try {
      await this.readPolicy(groupId);
      await this.eraseRedacted(groupId);
    } catch (error) {
      if (!isNotMember(error)) throw error;
      return this.removeGroup(groupId);
    }
    await this.fetch(groupId);
  }

  async readPolicy(groupId: Id): Promise<void> {
    const found = await this.server.retention(groupId);
    this.lastNumbers.set(groupId, found.last_sequence_num);
    const former = this.retentions.get(groupId);
    this.retentions.set(groupId, found);
    if (await this.history.setExpiry(groupId, found.effective_expiry_seconds))
      this.observer.onPolicyChange(groupId, former, found);
    if (JSON.stringify(former) !== JSON.stringify(found)) {
      await this.vault.write(new Batch().put(["retention", groupId], { ...found, taken_back: [] }));
      this.observer.onChange();
    }
    await this.erase(groupId, (each) => each.createdAt < found.hidden_before);
    await this.onTakenBack(groupId, found.taken_back);
    if (found.more) await this.readAllTakenBack(groupId);
  }

  /** Reads which local messages were taken back: the policy lists only the last ones. */
  private async readAllTakenBack(groupId: Id): Promise<void> {
    const numbers = [...this.keys.keptNumbers(groupId), ...this.history.group(groupId).entries.slice(0, 1).map((each) => each.number)];
    let after = Math.max(0, Math.min(...numbers) - 1);
    for (let more = numbers.length > 0; more; ) {
      const found = await this.server.retention(groupId, after);
      await this.onTakenBack(groupId, found.taken_back);
      const last = found.taken_back.at(-1) ?? 0;
      more = found.more && last > after; // must make progress
      after = last;
    }
  }

  /** Erases self-destructing messages that the server redacts: their timers may have ended while the page was closed. */
  private async eraseRedacted(groupId: Id): Promise<void> {
    const numbers = this.history.group(groupId).entries.flatMap((each) => (each.selfDestructSeconds > 0 ? [each.number] : []));
    if (numbers.length === 0) return;
    const shown = new Set<number>();
    for (let after = numbers[0]! - 1; after < numbers.at(-1)!; ) {
      const page = await this.server.messages(groupId, after, true);
      if (!this.clock.isKnown) return; // a wrong clock may hide messages only for a while
      if (page.length === 0) break;
      for (const each of page) if (!each.redacted) shown.add(each.sequence_num);
      after = page.at(-1)!.sequence_num;
    }
    const redacted = new Set(numbers.filter((each) => !shown.has(each)));
    await this.erase(groupId, (each) => redacted.has(each.number));
  }

  /** Erases messages of deleted accounts. `known`: whether an account is deleted; this adds to it. */
  async eraseDeletedSenders(groupId: Id, userIds: readonly Id[], known = new Map<Id, boolean>()): Promise<void> {
    for (const userId of userIds) {
      if (!known.has(userId)) known.set(userId, await this.isDeleted(userId));
      if (known.get(userId)) await this.erase(groupId, (each) => each.senderId === userId);
    }
  }

  private async isDeleted(userId: Id): Promise<boolean> {
    try {
      await this.server.userById(userId);
      return false;
    } catch (error) {
      if (hasCode(error, Code.NOT_FOUND)) return true;
      throw error;
    }
  }

  /**
   * Fetches all new messages. The last page is empty: it shows that there are no more, and confirms the one before. While
   * the server does not know the time, pages may lack messages, so they are fetched later.
   */
  async fetch(groupId: Id): Promise<void> {
    if (!this.listed.has(groupId)) await this.readGroups();
    if (!this.history.has(groupId)) await this.ifMember(() => this.readPolicy(groupId));
    if (!this.keys.hasKeys(groupId)) await this.processWelcomes(); // it was stored before any message that it is for
    let accepted: Id[];
    for (;;) {
      this.keys.recordFetch(groupId);
      accepted = this.observer.acceptedSends(groupId);
      const after = this.history.group(groupId).fetchedUpTo;
      const page = await this.ifMember(() => this.server.messages(groupId, after));
      if (!page) return this.removeGroup(groupId);
      if (this.clock.isTimeUnknown) return;
      if (page.length === 0) break;
      checkOrder(after, page);
      if (!this.listed.has(groupId)) return; // the user has left it
      await this.store(groupId, page);
    }
    await this.observer.onSendsExpired(groupId, accepted);
    await this.keys.caughtUp(groupId, this.lastNumbers.get(groupId) ?? 0);
    this.caughtUp.add(groupId);
    const erased = this.keys.keptNumbers(groupId).filter((each) => !this.history.group(groupId).find(each));
    if (erased.length > 0) await this.keys.eraseMessages(groupId, erased);
    this.observer.onChange();
  }

  private async store(groupId: Id, page: readonly StoredMessage[]): Promise<void> {
    const messages = page.map(incomingMessage);
    if (this.keys.needsMembers(groupId, messages)) await this.readGroups();
    if (this.hasOtherPolicy(groupId, page)) await this.ifMember(() => this.readPolicy(groupId));
    const upTo = messages.at(-1)!.number;
    let added: Entry[] = [];
    const store = (decoded: readonly DecodedMessage[], batch: Batch): void => {
      for (const { sendId, message } of decoded) if (sendId) this.observer.onOwnMessage(groupId, sendId, message.number, batch);
      added = this.history.store(groupId, upTo, decoded.map((each) => this.newMessage(groupId, each)), batch);
    };
    try {
      await this.keys.decode(groupId, messages, store);
    } catch (error) {
      await this.history.reload(groupId);
      throw error;
    }
    this.observer.onMessages(groupId, added, this.caughtUp.has(groupId));
  }

  private newMessage(groupId: Id, { message, text }: DecodedMessage): NewMessage {
    const { payload: _, ...rest } = message;
    return { ...rest, text, isMention: text !== null && this.observer.isMention(groupId, text) };
  }

  /** Whether a page shows another policy than the known one. */
  private hasOtherPolicy(groupId: Id, page: readonly StoredMessage[]): boolean {
    const { expiry } = this.history.group(groupId);
    return page.some((each) => each.expires_at !== (expiry > 0 ? each.created_at + expiry + 1 : 0));
  }

  /** Reports new read positions to the server. */
  async reportReads(): Promise<void> {
    for (const { groupId, upTo } of this.history.unreportedReads()) {
      if (!this.listed.has(groupId)) continue;
      await this.ifMember(() => this.server.read(groupId, upTo));
      await this.history.markReported(groupId, upTo);
    }
  }

  /** Passes Welcomes to the encryption. */
  async processWelcomes(): Promise<void> {
    for (const { group_id: groupId, welcome_id, welcome_message } of await this.server.welcomes()) {
      const inviter = this.invites.find((each) => each.group_id === groupId)?.inviter_id ?? this.inviters.get(groupId) ?? null;
      if (!(await this.keys.processWelcome(groupId, fromBase64(welcome_message), inviter))) continue;
      try {
        await this.server.acceptWelcome(welcome_id);
      } catch (error) {
        if (!hasCode(error, Code.NOT_FOUND)) throw error; // accepted before, and the response was lost
      }
    }
  }

  /** The inviters of the user by group, as the server names them. */
  readonly inviters = new Map<Id, Id>();

  /** Erases all local data of a group that the user has left. */
  async removeGroup(groupId: Id): Promise<void> {
    await this.keys.forget(groupId);
    const hadMessages = await this.history.forgetGroup(groupId);
    await this.vault.write(new Batch().delete(["retention", groupId]));
    this.retentions.delete(groupId);
    this.caughtUp.delete(groupId);
    const wasListed = this.listed.delete(groupId);
    if (hadMessages || wasListed) this.observer.onGroupRemoved(groupId);
    this.observer.onChange();
  }

  /** Erases messages, which are then not sent again either. */
  async erase(groupId: Id, condition: (entry: Entry) => boolean): Promise<void> {
    const numbers = await this.history.erase(groupId, condition);
    if (numbers.length === 0) return;
    await this.keys.eraseMessages(groupId, numbers);
    this.observer.onChange();
  }

  /** Erases messages that were taken back, and takes back their repetitions. */
  async onTakenBack(groupId: Id, numbers: readonly number[]): Promise<void> {
    if (numbers.length === 0) return;
    const all = new Set(numbers);
    const kept = this.keys.keptNumbers(groupId);
    const isRepeated = numbers.some((each) => kept.includes(each) || this.keys.repeatsOf(groupId, each).length > 0);
    if (isRepeated) await this.keys.eraseMessages(groupId, all, true);
    await this.erase(groupId, (each) => all.has(each.number));
  }

  /** Runs a request that only members may make; returns null if the user is not a member. */
  private async ifMember<T>(work: () => Promise<T>): Promise<T | null> {
    try {
      return await work();
    } catch (error) {
      if (isNotMember(error)) return null;
      throw error;
    }
  }
}

function incomingMessage(message: StoredMessage): IncomingMessage {
  return {
    number: message.sequence_num,
    senderId: message.sender_id,
    payload: payloadOf(message),
    createdAt: message.created_at,
    selfDestructSeconds: message.self_destruct_seconds,
  };
}

function payloadOf(message: StoredMessage): Uint8Array {
  try {
    return fromBase64(message.mls_message);
  } catch {
    return new Uint8Array(); // rejected as malformed later
  }
}

function checkOrder(after: number, page: readonly StoredMessage[]): void {
  let last = after;
  for (const { sequence_num: number } of page) {
    if (!Number.isSafeInteger(number) || number <= last) throw new NoAnswerError("the server's messages are out of order");
    last = number;
  }
}
