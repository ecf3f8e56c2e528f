/** The encryption of an account: MLS (RFC 9420). */

import type { Id } from "../api";
import { equal, hex, idBytes, sha256, utf8 } from "../bytes";
import { commit, type CommitChanges } from "../mls/committing";
import { MlsError } from "../mls/errors";
import { MlsGroup } from "../mls/group";
import { joinByWelcome, joinExternal } from "../mls/joining";
import { fingerprint } from "../mls/suite";
import { identityOf } from "../mls/checks";
import { decode, readHeader, readInfo, type GroupInfoHeader } from "../mls/wire";
import type { ListedGroup } from "../server/wire";
import { Batch, type Vault } from "../store/vault";
import { EncryptionError, NotReadyError, ReplacedError } from "./errors";
import type { GroupRecord, SentText } from "./group-record";
import { GroupStore } from "./group-store";
import { MessageProcessor, type DecodedMessage, type IncomingMessage } from "./message-processor";
import { OwnKeys } from "./packages";
import * as texts from "./texts";
import type { GroupTransaction } from "./transaction";

/** Bytes of a commit with its group info: a request has at most 1 MiB, and base64 takes 4/3. */
const MAX_REQUEST_BYTES = 750_000;
export const MAX_TEXT_BYTES = 500_000;
/** A commit that was sent can be fetched within five seconds, or was not stored. */
export const COMMIT_ARRIVAL_SECONDS = 5;
const NO_BYTES: Uint8Array = new Uint8Array();

const WELCOMED = "This member added you to the group.";
const WELCOMED_BY_ANOTHER = "This member added you, but the server named another inviter.";

/** The messages to send for a change of the members. Empty bytes: nothing to send. */
export interface MembershipChange {
  commit: Uint8Array;
  info: Uint8Array;
  welcome: Uint8Array;
}

/** A commit by which the user joins from outside, and the group info after it. */
export interface ExternalCommit {
  commit: Uint8Array;
  mlsGroupId: string;
  info: Uint8Array;
}

export class Encryption extends GroupStore {
  readonly processor: MessageProcessor;
  private readonly listedKeys = new Set<string>();

  private constructor(
    vault: Vault,
    userId: Id,
    readonly now: () => number,
    readonly ownKeys: OwnKeys,
    clock?: () => number,
  ) {
    super(vault, userId, clock);
    this.processor = new MessageProcessor(userId, this.agenda, now);
  }

  /** Reads the stored state. `now`: returns the server's time in Unix seconds. */
  static async open(vault: Vault, userId: Id, now: () => number, clock?: () => number): Promise<Encryption> {
    const made = new Encryption(vault, userId, now, await OwnKeys.open(vault, userId, now), clock);
    await made.readAll();
    return made;
  }

  // Messages

  /** Returns the group if messages can be encrypted. Throws NotReadyError or ReplacedError otherwise. */
  checkReady(groupId: Id): MlsGroup {
    const record = this.records.get(groupId);
    const group = this.requireGroup(groupId);
    const agenda = this.agenda.of(groupId);
    if (agenda.hasLaterMessages || !agenda.isCaughtUp) {
      this.agenda.schedule(groupId); // the state may be outdated, and its keys used
      throw new NotReadyError("messages of this group are still being fetched");
    }
    let why = "";
    if (agenda.isNew) why = "this device has just joined and is comparing its keys";
    else if (record?.isDoubtful) why = "the keys of this device may be outdated and are being renewed";
    else if (group.hasProposals) why = "the group is being changed";
    if (why) {
      this.agenda.schedule(groupId, 0);
      throw new NotReadyError(why);
    }
    return group;
  }

  /** Encrypts a text, and stores it with the new state. `original`: the number that it repeats; 0: it is new. */
  async encode(groupId: Id, text: string, sendId: string, original = 0): Promise<Uint8Array> {
    this.checkReady(groupId);
    return this.change(groupId, async (tx) => {
      const group = this.checkReady(groupId);
      // Checked within the transaction, so that a key that has just changed gets no message for the former one.
      if (this.hasChangedKeys(groupId)) throw new NotReadyError("a key has changed");
      const { group: next, message } = await group.encrypt(utf8(text), original ? texts.encodeOriginal(original) : NO_BYTES);
      tx.group = next;
      const hash = hex(await sha256(message));
      texts.keepSent(tx.record, { hash, text, epoch: group.epoch, madeAt: this.now(), original, sendId });
      return message;
    });
  }

  /** Whether the list of members has to be read first: a message may change members, and its sender is not a known admin. */
  needsMembers(groupId: Id, messages: readonly IncomingMessage[]): boolean {
    if (!this.hasKeys(groupId)) return false;
    const { admins } = this.agenda.of(groupId);
    return messages.some((each) => !admins.has(each.senderId) && readHeader(each.payload)?.mayChangeMembers);
  }

  /** Sets the members and admins of groups by the server's list. */
  updateMembers(groups: readonly ListedGroup[]): void {
    for (const group of groups) {
      for (const each of group.members) if (each.user_id === this.userId) this.recordListedKey(each.signing_key_fingerprint);
      if (this.agenda.of(group.group_id).updateMembers(group)) this.news.push({ kind: "changed", groupId: group.group_id });
    }
  }

  /**
   * Decrypts messages and applies commits. `store` adds the history's changes to the same batch, which is on the disk when
   * this returns. If it fails, the keys of the group are dropped, and the messages are skipped.
   */
  async decode(groupId: Id, messages: readonly IncomingMessage[], store: (found: readonly DecodedMessage[], batch: Batch) => void): Promise<void> {
    const before = this.status(groupId);
    try {
      await this.change(groupId, async (tx) => store(await this.processor.process(tx, messages), tx.batch));
    } catch (error) {
      if (!(error instanceof EncryptionError)) throw error;
      await this.change(groupId, async (tx) => {
        await this.processor.skipMessages(tx, messages);
        store([], tx.batch);
      });
      this.reportUnusable(groupId);
    }
    const after = this.status(groupId);
    if (after.epoch !== before.epoch || after.state !== before.state) this.news.push({ kind: "changed", groupId });
  }

  /** Records the start of a fetch. */
  recordFetch(groupId: Id): void {
    this.agenda.of(groupId).recordFetch();
  }

  /** Records that all messages were read. `last`: the group's last number. */
  async caughtUp(groupId: Id, last: number): Promise<void> {
    const record = this.records.get(groupId);
    const agenda = this.agenda.of(groupId);
    if (record && record.upTo > 0 && record.upTo < last && !agenda.isCaughtUp) {
      await this.change(groupId, async (tx) => {
        this.processor.recordGap(tx);
        tx.record.upTo = last;
      });
    }
    agenda.recordCaughtUp();
    const now = this.now();
    const lastKey = this.lastStoredKey.get(groupId) ?? 0;
    const isDroppable = (own: SentText, of: GroupRecord): boolean =>
      texts.isStale(own, lastKey, now) || (this.processor.isConfirmed(of) && texts.isConfirmable(own, now));
    if (record?.own.some((each) => isDroppable(each, record)))
      await this.changeRecord(groupId, (of) => void (of.own = of.own.filter((each) => !isDroppable(each, of))));
  }

  // Members

  /** Creates the encryption of a group, with the user as its only member. */
  create(groupId: Id): Promise<{ info: Uint8Array; mlsGroupId: string }> {
    return this.change(groupId, async (tx) => {
      const group = await MlsGroup.create(await this.ownKeys.ownLeaf());
      tx.group = group;
      tx.record.renewedAt = this.now();
      tx.record.missed = 0;
      await this.processor.enter(tx);
      return { info: await group.groupInfo(), mlsGroupId: group.groupId };
    });
  }

  /** Records the fingerprint that the server has for the account; "": none. */
  recordListedKey(listed: string): void {
    if (listed) this.listedKeys.add(listed);
  }

  /** Creates a commit that adds a user. */
  add(groupId: Id, userId: Id, keyPackage: Uint8Array): Promise<MembershipChange> {
    return this.change(
      groupId,
      async (tx) => {
        const message = decode(keyPackage);
        if (message.wireformat !== "mls_key_package" || !equal(identityOf(message.keyPackage.leafNode), idBytes(userId)))
          throw new EncryptionError("the server returned another user's key: the user was not added");
        return this.commitIn(tx, { add: [message.keyPackage] });
      },
      "this user cannot be added",
    );
  }

  /** Creates a commit that removes a member; empty if this client or the member has no keys. */
  async remove(groupId: Id, userId: Id): Promise<MembershipChange> {
    const nothing = { commit: NO_BYTES, info: NO_BYTES, welcome: NO_BYTES };
    if (!this.hasKeys(groupId)) return nothing;
    return this.change(
      groupId,
      async (tx) => {
        // Searched within the transaction: another member may have the leaf by now.
        const member = this.requireGroup(groupId).find(userId);
        return member ? this.commitIn(tx, { remove: [member.index] }) : nothing;
      },
      "the group cannot be changed",
    );
  }

  /** Creates a commit that renews the own keys, removes leaves, and includes proposals. */
  commit(groupId: Id, remove: readonly number[] = []): Promise<MembershipChange> {
    return this.change(groupId, (tx) => this.commitIn(tx, { remove }), "the group cannot be changed");
  }

  private async commitIn(tx: GroupTransaction, changes: Omit<CommitChanges, "now">): Promise<MembershipChange> {
    const made = await commit(this.requireGroup(tx.groupId), { ...changes, now: this.now() });
    tx.group = made.group;
    const welcome = made.welcome ?? NO_BYTES;
    return { commit: made.message, info: infoIfFits(made.groupInfo, made.message, welcome), welcome };
  }

  /** Creates a commit by which the user joins from outside. `anew`: earlier commits are forgotten. */
  join(groupId: Id, bytes: Uint8Array, anew = false): Promise<ExternalCommit> {
    const info = readInfo(bytes);
    if (!info) return Promise.reject(new EncryptionError("this group is not encrypted, or by an incompatible client"));
    return this.change(
      groupId,
      async (tx) => {
        this.processor.dropState(tx);
        if (anew) tx.record.commits = [];
        const { group, message } = await joinExternal(bytes, await this.ownKeys.ownLeaf());
        tx.group = group;
        tx.record.awaitCommit(group.epoch - 1, group.tag, info.tag);
        tx.record.renewedAt = this.now();
        tx.record.recordJoinCommit(group.tag);
        this.agenda.of(groupId).joinSentAt = this.agenda.clock();
        return { commit: message, mlsGroupId: group.groupId, info: infoIfFits(await group.groupInfo(), message) };
      },
      "this group cannot be joined",
    );
  }

  /**
   * Joins by a Welcome. It takes effect when its commit is fetched. `inviter`: as named by the server; null: not known.
   * Returns false if the Welcome is not for these keys.
   */
  async processWelcome(groupId: Id, welcome: Uint8Array, inviter: Id | null): Promise<boolean> {
    const digest = hex(await sha256(welcome));
    const record = this.records.get(groupId);
    if (record?.welcome === digest) return true; // processed before, and the response was lost
    const ownKeys = this.ownKeys.all();
    try {
      const { group, used, by } = await joinByWelcome(welcome, ownKeys);
      await this.change(groupId, async (tx) => {
        this.processor.dropState(tx);
        this.ownKeys.dropUsed(ownKeys.indexOf(used), tx.batch);
        tx.group = group;
        tx.record.welcome = digest;
        tx.record.awaitCommit(group.epoch - 1, group.tag, "");
        tx.record.renewedAt = used.isLastResort ? 0 : this.now();
        this.agenda.of(groupId).joinSentAt = this.agenda.clock();
        await this.processor.resolveAwaited(tx);
        const isNamed = inviter === null || inviter === by.userId;
        tx.notice(isNamed ? "welcomed" : "refused", isNamed ? WELCOMED : WELCOMED_BY_ANOTHER, by.userId);
      });
    } catch (error) {
      if (error instanceof MlsError && error.kind === "notForUs") return record?.stage === "in";
      if (!(error instanceof MlsError || error instanceof EncryptionError)) throw error;
      return true; // unusable: the user joins by an external commit
    }
    this.agenda.schedule(groupId, COMMIT_ARRIVAL_SECONDS);
    return true;
  }

  /** Creates a new signature key, and drops the states of all groups, which the user then rejoins. */
  async resetKeys(): Promise<void> {
    await this.serialized(async () => {
      const batch = new Batch();
      await this.ownKeys.replaceKey(batch);
      for (const record of this.records.values()) {
        record.dropState();
        texts.markKeysLost(record);
        record.hadKeys = false; // no leaf has the new key yet
        batch.put(["held", record.groupId], record).delete(["mls", record.groupId]);
      }
      await this.vault.write(batch);
      this.groups.clear();
      this.statuses.clear();
    });
    for (const groupId of this.records.keys()) {
      this.news.push({ kind: "changed", groupId });
      this.agenda.schedule(groupId);
    }
  }

  /** Whether a commit was fetched that is later than a group info, or has won against its commit. */
  isOutdated(record: GroupRecord, info: GroupInfoHeader): boolean {
    const into = record.commitInto(info.epoch);
    return record.firstCommit(info.epoch) !== null || (into !== null && into !== info.tag);
  }

  /** Forgets commits that were fetched without keys: one of them may be invalid. */
  forgetCommits(groupId: Id): Promise<void> {
    return this.changeRecord(groupId, (record) => void (record.commits = []));
  }

  /** Drops the state of a group. */
  async dropState(groupId: Id): Promise<void> {
    await this.change(groupId, async (tx) => this.processor.dropState(tx));
    this.news.push({ kind: "changed", groupId });
  }

  /** Returns whether another device of the user has replaced this one in the group, and records it. */
  async isReplaced(groupId: Id, bytes: Uint8Array): Promise<boolean> {
    if (!this.records.get(groupId)?.hadKeys) return false;
    const key = readInfo(bytes)?.keys.get(this.userId);
    if (!key || (await this.ownKeys.isOwn(key))) return false; // the group info may be older than a key reset
    if (this.listedKeys.size > 0 && !this.listedKeys.has(await fingerprint(key))) return false; // forged by a member
    try {
      await joinExternal(bytes, await this.ownKeys.ownLeaf()); // checks it: a forged one must not keep this device out
    } catch {
      return false;
    }
    await this.change(groupId, async (tx) => this.processor.markReplaced(tx));
    this.news.push({ kind: "changed", groupId });
    return true;
  }

  private requireGroup(groupId: Id): MlsGroup {
    const record = this.records.get(groupId);
    if (record?.stage === "replaced")
      throw new ReplacedError("another device has replaced this one: reset your keys to use this device");
    const group = this.groupOf(groupId);
    if (!group) {
      this.agenda.schedule(groupId);
      throw new NotReadyError("this device has no keys of this group yet");
    }
    return group;
  }
}

/** Returns a group info if it fits into a request with the others. Without it, users need an invite to join. */
function infoIfFits(info: Uint8Array, ...others: Uint8Array[]): Uint8Array {
  return others.reduce((sum, each) => sum + each.length, info.length) <= MAX_REQUEST_BYTES ? info : NO_BYTES;
}
