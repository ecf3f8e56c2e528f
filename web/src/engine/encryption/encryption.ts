/** An account's encryption: MLS, by RFC 9420, as the other clients of the protocol use it. */

import type { Id } from "../api";
import { equal, hex, idBytes, sha256, utf8 } from "../bytes";
import { commit } from "../mls/committing";
import { MlsError } from "../mls/errors";
import { MlsGroup } from "../mls/group";
import { joinByWelcome, joinExternal } from "../mls/joining";
import { fingerprint } from "../mls/suite";
import { identityOf } from "../mls/checks";
import { decode, readHeader, readInfo, type Info } from "../mls/wire";
import type { ListedGroup } from "../server/wire";
import { Batch, type Vault } from "../store/vault";
import type { Draft } from "./draft";
import { EncryptionError, NotReadyError, ReplacedError } from "./errors";
import type { Held, OwnText } from "./held";
import { KeptGroups } from "./kept-groups";
import { inTheClear, Order, type Arrived, type Readable } from "./order";
import { Packages } from "./packages";
import * as texts from "./texts";

/** Bytes of a commit and what goes with it: a request has 1 MiB at most, and bytes take 4/3 of their length in JSON. */
const MOST_BYTES = 750_000;
/** Bytes of a text. */
export const LONGEST_TEXT = 500_000;
/** A commit that was sent is there after five seconds, or was not stored. */
export const AWAITED_SECONDS = 5;
const NO_BYTES: Uint8Array = new Uint8Array();

const WELCOMED = "This member's keys have signed what let you in.";
const WELCOMED_BY_ANOTHER =
  "This member's keys have signed what let you in, and the server had named somebody else as the one who invites you.";

/** What a change of the members gives to send. Empty bytes: nothing. */
export interface Change {
  commit: Uint8Array;
  info: Uint8Array;
  welcome: Uint8Array;
}

/** What brings the user in from outside. */
export interface Joining {
  commit: Uint8Array;
  mlsGroupId: string;
  info: Uint8Array;
}

/** A text that is to be sent again: `original` is the number under which it came first. */
export interface SendAgain {
  key: number;
  groupId: Id;
  text: string;
  selfDestructSeconds: number;
  original: number;
}

export class Encryption extends KeptGroups {
  readonly order: Order;
  private readonly listedKeys = new Set<string>();

  private constructor(
    vault: Vault,
    userId: Id,
    readonly now: () => number,
    readonly packages: Packages,
    clock?: () => number,
  ) {
    super(vault, userId, clock);
    this.order = new Order(userId, this.agenda, now);
  }

  /** Opens what is kept. `now`: Unix seconds of the server. */
  static async open(vault: Vault, userId: Id, now: () => number, clock?: () => number): Promise<Encryption> {
    const made = new Encryption(vault, userId, now, await Packages.open(vault, userId, now), clock);
    await made.readAll();
    return made;
  }

  // Messages

  /** Throws NotReadyError if nothing can be encrypted yet, ReplacedError if nothing will be by itself. */
  checkReady(groupId: Id): MlsGroup {
    const held = this.held.get(groupId);
    const group = this.ready(groupId);
    const agenda = this.agenda.of(groupId);
    if (agenda.ahead || !agenda.isCaughtUp) {
      this.agenda.want(groupId); // the state may be an old one, whose keys were used
      throw new NotReadyError("what came to this group is still being read: it goes on by itself");
    }
    let why = "";
    if (agenda.isNew) why = "this device has just come in, and compares its keys with those of the others";
    else if (held?.isDoubtful) why = "messages are gone that may have been sent from here: new keys are on their way";
    else if (group.hasProposals) why = "the group is being changed: it goes on in a moment";
    if (why) {
      this.agenda.want(groupId, 0);
      throw new NotReadyError(why);
    }
    return group;
  }

  /** Encrypts a text. It is stored with the state that follows when it returns. `original`: it is sent again. */
  async encode(groupId: Id, text: string, sendId: string, original = 0): Promise<Uint8Array> {
    this.checkReady(groupId);
    return this.change(groupId, async (draft) => {
      const group = this.checkReady(groupId);
      // Asked in turn: a key that changed a moment ago must not get what was meant for the former one.
      if (this.isInDoubt(groupId)) throw new NotReadyError("a key has changed");
      const { group: next, message } = await group.encrypt(utf8(text), original ? inTheClear(original) : NO_BYTES);
      draft.group = next;
      const hash = hex(await sha256(message));
      texts.keepOwn(draft.held, { hash, text, epoch: group.epoch, madeAt: this.now(), original, sendId });
      return message;
    });
  }

  /** Forgets the text of a payload, unless it came back. */
  async withdraw(groupId: Id, payload: Uint8Array): Promise<void> {
    const hash = hex(await sha256(payload));
    await this.changeOwn(groupId, (held) => {
      const own = texts.findOwn(held, hash);
      if (own && !texts.isKept(own)) texts.dropOwn(held, own.key);
    });
  }

  /** Forgets all tries to send a text: one of them has come, or the server has had it. */
  hasCome(groupId: Id, sendId: string): Promise<void> {
    return this.changeOwn(groupId, (held) => texts.dropTries(held, sendId));
  }

  /** Texts that came after their keys had passed, or with keys that were not those of the others. */
  toSendAgain(): SendAgain[] {
    return [...this.held.values()].flatMap((held) =>
      held.own.flatMap(({ key, text, again, original }) =>
        again === null ? [] : [{ key, groupId: held.groupId, text, selfDestructSeconds: again, original }],
      ),
    );
  }

  sentAgain(groupId: Id, key: number): Promise<void> {
    return this.changeOwn(groupId, (held) => texts.dropOwn(held, key));
  }

  /** The numbers of the messages of which a text is kept. */
  kept(groupId: Id): number[] {
    const held = this.held.get(groupId);
    return held ? texts.keptNumbers(held) : [];
  }

  /** Erases what is kept of messages that are gone. */
  gone(groupId: Id, numbers: Iterable<number>, areTakenBack = false): Promise<void> {
    const all = new Set(numbers);
    return this.changeOwn(groupId, (held) => texts.dropGone(held, all, areTakenBack));
  }

  /** Own messages that were sent anew although their first ones were taken back. */
  toTakeBack(): { groupId: Id; number: number }[] {
    return [...this.held.values()].flatMap(({ groupId, unwanted }) => unwanted.map((number) => ({ groupId, number })));
  }

  takenBack(groupId: Id, number: number): Promise<void> {
    return this.changeOwn(groupId, (held) => {
      held.unwanted = held.unwanted.filter((each) => each !== number);
      held.repeats = held.repeats.filter((each) => each.number !== number);
    });
  }

  /** The numbers under which a text has come once more. */
  repeated(groupId: Id, number: number): number[] {
    return (this.held.get(groupId)?.repeats ?? []).filter((each) => each.original === number).map((each) => each.number);
  }

  /** Whether somebody changes the members who was no admin when the list was read last, or none was read. */
  wantsMembers(groupId: Id, messages: readonly Arrived[]): boolean {
    if (!this.hasKeys(groupId)) return false;
    const { admins } = this.agenda.of(groupId);
    return messages.some((each) => !admins.has(each.senderId) && readHeader(each.payload)?.mayChangeMembers);
  }

  /** Takes the members and admins of the user's groups, as the server lists them now. */
  noteMembers(groups: readonly ListedGroup[]): void {
    for (const group of groups) {
      for (const each of group.members) if (each.user_id === this.userId) this.noteOwnKey(each.signing_key_fingerprint);
      if (this.agenda.of(group.group_id).takeList(group)) this.news.push({ kind: "changed", groupId: group.group_id });
    }
  }

  /**
   * Decrypts messages, and takes commits; `store` adds to the batch what the history makes of them. All is on the disk
   * when it returns. If that fails, the keys of the group are given up, and the messages are passed by.
   */
  async decode(groupId: Id, messages: readonly Arrived[], store: (found: readonly Readable[], batch: Batch) => void): Promise<void> {
    const before = this.sight(groupId);
    try {
      await this.change(groupId, async (draft) => store(await this.order.read(draft, messages), draft.batch));
    } catch (error) {
      if (!(error instanceof EncryptionError)) throw error;
      await this.change(groupId, async (draft) => {
        await this.order.passOver(draft, messages);
        store([], draft.batch);
      });
      this.lost(groupId);
    }
    const after = this.sight(groupId);
    if (after.epoch !== before.epoch || after.standing !== before.standing) this.news.push({ kind: "changed", groupId });
  }

  /** A page of messages is asked for next. */
  fetches(groupId: Id): void {
    this.agenda.of(groupId).fetches();
  }

  /** Everything was read: from here on it is known what was sent by these keys. `last`: the group's last number. */
  async caughtUp(groupId: Id, last: number): Promise<void> {
    const held = this.held.get(groupId);
    const agenda = this.agenda.of(groupId);
    if (held && held.upTo > 0 && held.upTo < last && !agenda.isCaughtUp) {
      await this.change(groupId, async (draft) => {
        this.order.misses(draft);
        draft.held.upTo = last;
      });
    }
    agenda.caughtUp();
    const now = this.now();
    const former = this.lastFormer.get(groupId) ?? 0;
    const isOver = (own: OwnText, of: Held): boolean =>
      texts.isFormer(own, former, now) || (this.order.isSure(of) && texts.isKeptForLong(own, now));
    if (held?.own.some((each) => isOver(each, held)))
      await this.changeOwn(groupId, (of) => void (of.own = of.own.filter((each) => !isOver(each, of))));
  }

  // Members

  /** Begins a new group, with the user alone in it. */
  begin(groupId: Id): Promise<{ info: Uint8Array; mlsGroupId: string }> {
    return this.change(groupId, async (draft) => {
      const group = await MlsGroup.create(await this.packages.ownLeaf());
      draft.group = group;
      draft.held.renewedAt = this.now();
      draft.held.missed = 0;
      await this.order.enter(draft);
      return { info: await group.groupInfo(), mlsGroupId: group.groupId };
    });
  }

  /** Notes the fingerprint that the server has for the account; "": none. */
  noteOwnKey(listed: string): void {
    if (listed) this.listedKeys.add(listed);
  }

  /** Makes a commit that adds a user. */
  add(groupId: Id, userId: Id, keyPackage: Uint8Array): Promise<Change> {
    const what = "this user cannot be added";
    return this.change(
      groupId,
      async (draft) => {
        const message = decode(keyPackage);
        if (message.wireformat !== "mls_key_package" || !equal(identityOf(message.keyPackage.leafNode), idBytes(userId)))
          throw new EncryptionError("the server has given a key that is not this user's: nobody was added");
        return this.commitIn(draft, { add: [message.keyPackage] });
      },
      what,
    );
  }

  /** Makes a commit that removes a member; empty if the keys are not there, or the member is not. */
  async remove(groupId: Id, userId: Id): Promise<Change> {
    const nothing = { commit: NO_BYTES, info: NO_BYTES, welcome: NO_BYTES };
    if (!this.hasKeys(groupId)) return nothing;
    return this.change(
      groupId,
      async (draft) => {
        // Found in turn: what was read before may have given the leaf to another one.
        const member = this.ready(groupId).find(userId);
        return member ? this.commitIn(draft, { remove: [member.index] }) : nothing;
      },
      "the group cannot be changed",
    );
  }

  /** Makes a commit with new own keys, which removes leaves, and takes proposals along. */
  commit(groupId: Id, remove: readonly number[] = []): Promise<Change> {
    return this.change(groupId, (draft) => this.commitIn(draft, { remove }), "the group cannot be changed");
  }

  private async commitIn(draft: Draft, wishes: Omit<Parameters<typeof commit>[1], "now">): Promise<Change> {
    const made = await commit(this.ready(draft.groupId), { ...wishes, now: this.now() });
    draft.group = made.group;
    const welcome = made.welcome ?? NO_BYTES;
    return { commit: made.message, info: fitting(made.groupInfo, made.message, welcome), welcome };
  }

  /** Makes a commit by which the user comes in from outside. `anew`: which commits there were is forgotten. */
  join(groupId: Id, bytes: Uint8Array, anew = false): Promise<Joining> {
    const info = readInfo(bytes);
    if (!info) return Promise.reject(new EncryptionError("this group was made without keys, or by a client that encrypts otherwise"));
    return this.change(
      groupId,
      async (draft) => {
        this.order.giveUp(draft);
        if (anew) draft.held.commits = [];
        const { group, message } = await joinExternal(bytes, await this.packages.ownLeaf());
        draft.group = group;
        draft.held.awaits(group.epoch - 1, group.tag, info.tag);
        draft.held.renewedAt = this.now();
        draft.held.noteRequest(group.tag);
        this.agenda.of(groupId).askedAt = this.agenda.clock();
        return { commit: message, mlsGroupId: group.groupId, info: fitting(await group.groupInfo(), message) };
      },
      "what the server has for those who come in is of no use",
    );
  }

  /**
   * Takes the state that a Welcome leads to. It counts once the commit that it belongs to has come. `inviter`: whom the
   * server has named; null: not known. False: it is not for these keys.
   */
  async welcomed(groupId: Id, welcome: Uint8Array, inviter: Id | null): Promise<boolean> {
    const digest = hex(await sha256(welcome));
    const held = this.held.get(groupId);
    if (held?.welcome === digest) return true; // it was taken before, and the answer of the server was lost
    const packages = this.packages.all();
    try {
      const { group, used, by } = await joinByWelcome(welcome, packages);
      await this.change(groupId, async (draft) => {
        this.order.giveUp(draft);
        this.packages.used(packages.indexOf(used), draft.batch);
        draft.group = group;
        draft.held.welcome = digest;
        draft.held.awaits(group.epoch - 1, group.tag, "");
        draft.held.renewedAt = used.isLastResort ? 0 : this.now();
        this.agenda.of(groupId).askedAt = this.agenda.clock();
        await this.order.decide(draft);
        const isNamed = inviter === null || inviter === by.userId;
        draft.notice(isNamed ? "welcomed" : "refused", isNamed ? WELCOMED : WELCOMED_BY_ANOTHER, by.userId);
      });
    } catch (error) {
      if (error instanceof MlsError && error.kind === "notForUs") return held?.stage === "in";
      if (!(error instanceof MlsError || error instanceof EncryptionError)) throw error;
      return true; // it is of no use: the user asks in
    }
    this.agenda.want(groupId, AWAITED_SECONDS);
    return true;
  }

  /** Begins with a new signature key. The states of all groups are erased: the user asks in again. */
  async newKeys(): Promise<void> {
    await this.inTurn(async () => {
      const batch = new Batch();
      await this.packages.replaceKey(batch);
      for (const held of this.held.values()) {
        held.leave();
        texts.giveUpKeys(held);
        held.hadKeys = false; // nothing is missed with the new ones, and no leaf is theirs yet
        batch.put(["held", held.groupId], held).delete(["mls", held.groupId]);
      }
      await this.vault.write(batch);
      this.groups.clear();
      this.sights.clear();
    });
    for (const groupId of this.held.keys()) {
      this.news.push({ kind: "changed", groupId });
      this.agenda.want(groupId);
    }
  }

  /** Whether commits have come that a group info does not know, or that have won against its own. */
  isOutdated(held: Held, info: Info): boolean {
    const into = held.commitInto(info.epoch);
    return held.firstCommit(info.epoch) !== null || (into !== null && into !== info.tag);
  }

  /** Forgets the commits that have come while there were no keys: one of them may be rubbish. */
  forgetCommits(groupId: Id): Promise<void> {
    return this.changeOwn(groupId, (held) => void (held.commits = []));
  }

  /** Gives the state of a group up: it leads nowhere. */
  async leave(groupId: Id): Promise<void> {
    await this.change(groupId, async (draft) => this.order.giveUp(draft));
    this.news.push({ kind: "changed", groupId });
  }

  /** Tells whether the user's place, which was this device's, has the key of another device; notes it. */
  async givesWay(groupId: Id, bytes: Uint8Array): Promise<boolean> {
    if (!this.held.get(groupId)?.hadKeys) return false;
    const key = readInfo(bytes)?.keys.get(this.userId);
    if (!key || (await this.packages.made(key))) return false; // the group info may be of the time before new keys
    if (this.listedKeys.size > 0 && !this.listedKeys.has(await fingerprint(key))) return false; // a member has made it up
    try {
      await joinExternal(bytes, await this.packages.ownLeaf()); // or anything false could keep this device out
    } catch {
      return false;
    }
    await this.change(groupId, async (draft) => this.order.replaced(draft));
    this.news.push({ kind: "changed", groupId });
    return true;
  }

  private ready(groupId: Id): MlsGroup {
    const held = this.held.get(groupId);
    if (held?.stage === "replaced")
      throw new ReplacedError("another device of yours has taken the place of this one: new keys bring it back");
    const group = this.groupOf(groupId);
    if (!group) {
      this.agenda.want(groupId);
      throw new NotReadyError("the keys of this group are not there yet: it goes on by itself");
    }
    return group;
  }

}

/** A group info if it fits into one request with the others. Otherwise nobody comes in without an invite. */
function fitting(info: Uint8Array, ...others: Uint8Array[]): Uint8Array {
  return others.reduce((sum, each) => sum + each.length, info.length) <= MOST_BYTES ? info : NO_BYTES;
}
