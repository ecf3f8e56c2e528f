/** Brings what is here in step with the server: what was missed is fetched, what is gone is erased. */

import type { Id } from "./api";
import { fromBase64 } from "./bytes";
import type { Encryption } from "./encryption/encryption";
import type { Arrived, Readable } from "./encryption/order";
import type { Entry, History, New } from "./history";
import type { ServerClock } from "./server/clock";
import { Code, hasCode, isNotMember, NoAnswerError } from "./server/errors";
import type { Server } from "./server/server";
import type { ListedGroup, ListedInvite, Retention, StoredMessage } from "./server/wire";
import { Batch, type Vault } from "./store/vault";

/** What those who use a mirror hear of. */
export interface Observer {
  /** New messages, and whether they came while all before them had been read. */
  arrived(groupId: Id, entries: readonly Entry[], isLive: boolean): void;
  /** An own text is here as a message. */
  sent(groupId: Id, sendId: Id, number: number, batch: Batch): void;
  /** Own texts that the server has, and that are not here. */
  answered(groupId: Id): Id[];
  /** Of these none will come any more. */
  areGone(groupId: Id, sendIds: readonly Id[]): Promise<void>;
  policyChanged(groupId: Id, former: Retention | undefined, now: Retention): void;
  /** Whether a text means the user. */
  means(groupId: Id, text: string): boolean;
  changed(): void;
  groupGone(groupId: Id): void;
}

export class Mirror {
  /** The user's groups as the server lists them, in the order in which they were joined. */
  listed = new Map<Id, ListedGroup>();
  invites: ListedInvite[] = [];
  readonly retentions = new Map<Id, Retention>();
  private readonly caughtUp = new Set<Id>();
  private asked = 0;
  private answered = 0;
  private readonly lastNumbers = new Map<Id, number>();

  constructor(
    private readonly server: Server,
    private readonly vault: Vault,
    private readonly history: History,
    private readonly keys: Encryption,
    private readonly clock: ServerClock,
    private readonly observer: Observer,
  ) {}

  /** Reads what was known of the groups when the page was closed. */
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

  /** Reads the whole state, and fetches what was missed. */
  async catchUp(): Promise<void> {
    const known = new Set([...this.history.ids(), ...this.keys.ids()]);
    const groups = await this.readGroups();
    for (const gone of known) if (!this.listed.has(gone)) await this.forgetGroup(gone);
    this.invites = await this.server.invites();
    this.observer.changed();
    await this.takeWelcomes();
    const deleted = new Map<Id, boolean>();
    for (const group of groups) {
      const groupId = group.group_id;
      const members = new Set(group.members.map((each) => each.user_id));
      const senders = new Set(this.history.group(groupId).entries.map((each) => each.senderId));
      await this.forgetDeleted(groupId, [...senders].filter((each) => !members.has(each)), deleted);
      await this.refresh(groupId);
      this.keys.agenda.want(groupId);
    }
    await this.tellRead();
  }

  /** Reads the list of the user's groups. */
  async readGroups(): Promise<ListedGroup[]> {
    const number = ++this.asked;
    const groups = await this.server.groups();
    if (number > this.answered) await this.noteGroups(groups); // an answer that came late would undo a later one
    this.answered = Math.max(this.answered, number);
    return groups;
  }

  private async noteGroups(groups: readonly ListedGroup[]): Promise<void> {
    const former = JSON.stringify([...this.listed.values()]);
    this.listed = new Map(groups.map((each) => [each.group_id, each]));
    this.keys.noteMembers(groups);
    if (JSON.stringify(groups) !== former) await this.vault.write(new Batch().put(["listed"], groups));
    this.observer.changed();
  }

  async readInvites(): Promise<void> {
    this.invites = await this.server.invites();
    this.observer.changed();
  }

  /** Reads a group's policy, and fetches what is new. */
  async refresh(groupId: Id): Promise<void> {
    try {
      await this.readPolicy(groupId);
      await this.compareSelfDestructing(groupId);
    } catch (error) {
      if (!isNotMember(error)) throw error;
      return this.forgetGroup(groupId);
    }
    await this.fetch(groupId);
  }

  async readPolicy(groupId: Id): Promise<void> {
    const found = await this.server.retention(groupId);
    this.lastNumbers.set(groupId, found.last_sequence_num);
    const former = this.retentions.get(groupId);
    this.retentions.set(groupId, found);
    if (await this.history.setExpiry(groupId, found.effective_expiry_seconds))
      this.observer.policyChanged(groupId, former, found);
    if (JSON.stringify(former) !== JSON.stringify(found)) {
      await this.vault.write(new Batch().put(["retention", groupId], { ...found, taken_back: [] }));
      this.observer.changed();
    }
    await this.forget(groupId, (each) => each.createdAt < found.hidden_before);
    await this.takenBack(groupId, found.taken_back);
    if (found.more) await this.readAllTakenBack(groupId);
  }

  /** What was taken back of the messages that are here: the policy lists only the last ones. */
  private async readAllTakenBack(groupId: Id): Promise<void> {
    const held = [...this.keys.kept(groupId), ...this.history.group(groupId).entries.slice(0, 1).map((each) => each.number)];
    let after = Math.max(0, Math.min(...held) - 1);
    for (let more = held.length > 0; more; ) {
      const found = await this.server.retention(groupId, after);
      await this.takenBack(groupId, found.taken_back);
      const last = found.taken_back.at(-1) ?? 0;
      more = found.more && last > after; // a server that lists nothing new has no more
      after = last;
    }
  }

  /** Forgets what the user may not see any more: its timer may have ended while nothing ran here. */
  private async compareSelfDestructing(groupId: Id): Promise<void> {
    const numbers = this.history.group(groupId).entries.flatMap((each) => (each.selfDestructSeconds > 0 ? [each.number] : []));
    if (numbers.length === 0) return;
    const shown = new Set<number>();
    for (let after = numbers[0]! - 1; after < numbers.at(-1)!; ) {
      const page = await this.server.messages(groupId, after, true);
      if (!this.clock.isKnown) return; // what a wrong clock hides is there again once it is right
      if (page.length === 0) break;
      for (const each of page) if (!each.redacted) shown.add(each.sequence_num);
      after = page.at(-1)!.sequence_num;
    }
    const gone = new Set(numbers.filter((each) => !shown.has(each)));
    await this.forget(groupId, (each) => gone.has(each.number));
  }

  /** Forgets what those have sent who have deleted their accounts. `known`: of whom that is known; it is added to. */
  async forgetDeleted(groupId: Id, userIds: readonly Id[], known = new Map<Id, boolean>()): Promise<void> {
    for (const userId of userIds) {
      if (!known.has(userId)) known.set(userId, await this.isDeleted(userId));
      if (known.get(userId)) await this.forget(groupId, (each) => each.senderId === userId);
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
   * Fetches all that comes after what is here. The last page is empty: only that says that nothing follows, and it confirms
   * the one before. While the server does not know the time, a page may lack messages: it is fetched once it does.
   */
  async fetch(groupId: Id): Promise<void> {
    if (!this.listed.has(groupId)) await this.readGroups();
    if (!this.history.has(groupId)) await this.ifMember(() => this.readPolicy(groupId));
    if (!this.keys.hasKeys(groupId)) await this.takeWelcomes(); // it was stored before any message that it is for
    let answered: Id[];
    for (;;) {
      this.keys.fetches(groupId);
      answered = this.observer.answered(groupId);
      const after = this.history.group(groupId).fetchedUpTo;
      const page = await this.ifMember(() => this.server.messages(groupId, after));
      if (!page) return this.forgetGroup(groupId);
      if (this.clock.isSilent) return;
      if (page.length === 0) break;
      checkOrder(after, page);
      if (!this.listed.has(groupId)) return; // the user has left it meanwhile
      await this.store(groupId, page);
    }
    await this.observer.areGone(groupId, answered);
    await this.keys.caughtUp(groupId, this.lastNumbers.get(groupId) ?? 0);
    this.caughtUp.add(groupId);
    const gone = this.keys.kept(groupId).filter((each) => !this.history.group(groupId).find(each));
    if (gone.length > 0) await this.keys.gone(groupId, gone);
    this.observer.changed();
  }

  private async store(groupId: Id, page: readonly StoredMessage[]): Promise<void> {
    const messages = page.map(arrivedOf);
    if (this.keys.wantsMembers(groupId, messages)) await this.readGroups();
    if (this.contradicts(groupId, page)) await this.ifMember(() => this.readPolicy(groupId));
    const upTo = messages.at(-1)!.number;
    let arrived: Entry[] = [];
    const store = (found: readonly Readable[], batch: Batch): void => {
      for (const { sendId, message } of found) if (sendId) this.observer.sent(groupId, sendId, message.number, batch);
      arrived = this.history.store(groupId, upTo, found.map((each) => this.newOf(groupId, each)), batch);
    };
    try {
      await this.keys.decode(groupId, messages, store);
    } catch (error) {
      await this.history.reload(groupId);
      throw error;
    }
    this.observer.arrived(groupId, arrived, this.caughtUp.has(groupId));
  }

  private newOf(groupId: Id, { message, text }: Readable): New {
    const { payload: _, ...rest } = message;
    return { ...rest, text, isMention: text !== null && this.observer.means(groupId, text) };
  }

  /** Whether a page goes by another policy than the one that is known here. */
  private contradicts(groupId: Id, page: readonly StoredMessage[]): boolean {
    const { expiry } = this.history.group(groupId);
    return page.some((each) => each.expires_at !== (expiry > 0 ? each.created_at + expiry + 1 : 0));
  }

  /** Tells the server what the user has seen, as far as it does not know. */
  async tellRead(): Promise<void> {
    for (const { groupId, upTo } of this.history.untold()) {
      if (!this.listed.has(groupId)) continue;
      await this.ifMember(() => this.server.read(groupId, upTo));
      await this.history.told(groupId, upTo);
    }
  }

  /** Hands welcomes to the encryption. */
  async takeWelcomes(): Promise<void> {
    for (const { group_id: groupId, welcome_id, welcome_message } of await this.server.welcomes()) {
      const inviter = this.invites.find((each) => each.group_id === groupId)?.inviter_id ?? this.inviters.get(groupId) ?? null;
      if (!(await this.keys.welcomed(groupId, fromBase64(welcome_message), inviter))) continue;
      try {
        await this.server.acceptWelcome(welcome_id);
      } catch (error) {
        if (!hasCode(error, Code.NOT_FOUND)) throw error; // accepted before, and the answer was lost
      }
    }
  }

  /** Who has invited the user, as the server has named them. */
  readonly inviters = new Map<Id, Id>();

  /** Erases what is here of a group that the user is not in any more. */
  async forgetGroup(groupId: Id): Promise<void> {
    await this.keys.forget(groupId);
    const wasHere = await this.history.forgetGroup(groupId);
    await this.vault.write(new Batch().delete(["retention", groupId]));
    this.retentions.delete(groupId);
    this.caughtUp.delete(groupId);
    const wasListed = this.listed.delete(groupId);
    if (wasHere || wasListed) this.observer.groupGone(groupId);
    this.observer.changed();
  }

  /** Erases messages. What of them had to be sent anew is not. */
  async forget(groupId: Id, which: (entry: Entry) => boolean): Promise<void> {
    const numbers = await this.history.forget(groupId, which);
    if (numbers.length === 0) return;
    await this.keys.gone(groupId, numbers);
    this.observer.changed();
  }

  /** Erases messages that were taken back, here or elsewhere; what of them had to be sent anew is not, or goes. */
  async takenBack(groupId: Id, numbers: readonly number[]): Promise<void> {
    if (numbers.length === 0) return;
    const all = new Set(numbers);
    const kept = this.keys.kept(groupId);
    const isRepeated = numbers.some((each) => kept.includes(each) || this.keys.repeated(groupId, each).length > 0);
    if (isRepeated) await this.keys.gone(groupId, all, true);
    await this.forget(groupId, (each) => all.has(each.number));
  }

  /** Does something for a member; null: the user is none. */
  private async ifMember<T>(work: () => Promise<T>): Promise<T | null> {
    try {
      return await work();
    } catch (error) {
      if (isNotMember(error)) return null;
      throw error;
    }
  }
}

function arrivedOf(message: StoredMessage): Arrived {
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
    return new Uint8Array(); // it is no message, and refused
  }
}

function checkOrder(after: number, page: readonly StoredMessage[]): void {
  let last = after;
  for (const { sequence_num: number } of page) {
    if (!Number.isSafeInteger(number) || number <= last) throw new NoAnswerError("the server's messages are out of order");
    last = number;
  }
}
