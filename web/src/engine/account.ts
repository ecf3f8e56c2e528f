/** An account that is logged in: all that is here of it, and what its user does. */

import type * as api from "./api";
import type { Id } from "./api";
import { Conversation } from "./conversation";
import { comparisonCode } from "./encryption/comparison";
import type { News } from "./encryption/draft";
import { Encryption, LONGEST_TEXT } from "./encryption/encryption";
import { History, type Entry } from "./history";
import { Membership } from "./membership";
import { Mirror, type Observer } from "./mirror";
import { nameFor } from "./names";
import { effective, told } from "./policy";
import { search } from "./search";
import { SendQueue } from "./sending";
import { ServerClock, type Anchor } from "./server/clock";
import { Code, hasCode, RefusedError } from "./server/errors";
import type { Server } from "./server/server";
import type { Retention } from "./server/wire";
import { Batch, type Vault } from "./store/vault";
import { Sync } from "./sync";
import { utf8 } from "./bytes";
import { means, replyTo } from "./texts";
import { directName, directOf, groupView, nameOf, titleOf, type Parts } from "./view";

/** Notices of a group that are kept in memory. */
const MOST_NOTICES = 50;
/** The server's time is stored once a minute. */
const NOTED_SECONDS = 60;

export interface Session {
  token: string;
  userId: Id;
  username: string;
  alias: string;
}

/** What the engine hears of an account. */
export interface AccountObserver {
  changed(): void;
  call(call: api.Call): void;
  sessionIsOver(): void;
  /** The storage has failed; null: it works again. */
  failed(error: Error | null): void;
}

export class Account implements Observer {
  readonly drafts = new Map<Id, string>();
  readonly notices = new Map<Id, api.Notice[]>();
  readonly names = new Map<Id, string>();
  readonly conversation: Conversation;
  readonly mirror: Mirror;
  readonly sync: Sync;
  readonly sending: SendQueue;
  readonly membership: Membership;
  private toldInvites = new Set<Id>();

  private constructor(
    readonly session: Session,
    private readonly vault: Vault,
    private readonly server: Server,
    readonly clock: ServerClock,
    readonly history: History,
    readonly keys: Encryption,
    private readonly observer: AccountObserver,
  ) {
    const changed = (): void => observer.changed();
    const lookAt = (groupId: Id): void => this.sync.lookAt(groupId);
    this.mirror = new Mirror(server, vault, history, keys, clock, this);
    this.conversation = new Conversation(history, server, session.userId, this.names, changed);
    this.sending = new SendQueue(
      vault,
      server,
      keys,
      () => this.sync.connection.state === "online",
      lookAt,
      changed,
      (error) => observer.failed(error),
      (groupId, number) => this.takeBack(groupId, number),
    );
    this.membership = new Membership(server, keys, (groupId) => this.sync.refresh(groupId));
    this.sync = new Sync(server, history, keys, this.mirror, clock, {
      changed: () => this.changed(),
      isReady: () => this.sending.goOnAll(),
      sessionIsOver: () => observer.sessionIsOver(),
      failed: (error) => observer.failed(error),
    });
  }

  /** Opens what is here of an account. What expired meanwhile is erased before this returns. */
  static async open(session: Session, vault: Vault, server: Server, observer: AccountObserver): Promise<Account> {
    const clock = new ServerClock((await vault.get<Anchor>(["clock"])) ?? null);
    const history = await History.open(vault, session.userId, clock);
    const keys = await Encryption.open(vault, session.userId, () => Math.floor(clock.sure()));
    const made = new Account(session, vault, server, clock, history, keys, observer);
    for (const groupId of keys.ids()) {
      const here = history.has(groupId) ? history.group(groupId) : null;
      const gone = keys.kept(groupId).filter((each) => !here?.find(each));
      if (gone.length > 0) await keys.gone(groupId, gone);
    }
    await made.mirror.open();
    await made.sending.open();
    for (const key of vault.keys("draft")) made.drafts.set(String(key[1]), (await vault.get<string>(key)) ?? "");
    let noted = clock.anchor;
    server.transport.onTime = (date) => {
      clock.hear(date);
      const { anchor } = clock;
      if (!anchor || (noted && anchor.at.start === noted.at.start && anchor.at.wall - noted.at.wall < NOTED_SECONDS)) return;
      noted = anchor;
      void vault.write(new Batch().put(["clock"], anchor)).catch((error: Error) => observer.failed(error));
    };
    return made;
  }

  start(): void {
    this.sync.start();
  }

  async close(): Promise<void> {
    this.sending.close();
    this.server.transport.onTime = () => undefined;
    this.server.transport.close();
    await this.sync.close();
  }

  // What is shown

  get parts(): Parts {
    const { history, keys, mirror, sending, clock, notices, drafts, names } = this;
    return { userId: this.session.userId, history, keys, mirror, sending, clock, notices, drafts, names };
  }

  groups(): api.Group[] {
    const groups = [...this.mirror.listed.values()].map((each) => groupView(this.parts, each));
    return groups.sort((one, other) => one.title.localeCompare(other.title) || (one.groupId < other.groupId ? -1 : 1));
  }

  invites(): api.Invite[] {
    return this.mirror.invites.map((each) => ({
      inviteId: each.invite_id,
      groupId: each.group_id,
      name: each.group_name,
      title: each.group_alias || each.group_name,
      inviter: each.inviter_username,
      createdAt: each.created_at,
    }));
  }

  // What the mirror tells

  changed(): void {
    for (const news of this.keys.takeNews()) this.tell(news);
    const invites = new Set(this.mirror.invites.map((each) => each.invite_id));
    for (const each of this.mirror.invites) {
      if (this.toldInvites.has(each.invite_id) || this.sync.connection.state !== "online") continue;
      const title = each.group_alias || each.group_name;
      this.observer.call({ groupId: each.group_id, title, sender: each.inviter_username, text: "", reason: "invite" });
    }
    this.toldInvites = invites;
    this.observer.changed();
  }

  arrived(groupId: Id, entries: readonly Entry[], isLive: boolean): void {
    const group = this.mirror.listed.get(groupId);
    const others = entries.filter((each) => each.senderId !== this.session.userId && each.isReadable);
    const last = others.findLast((each) => each.isMention) ?? others.at(-1);
    if (!isLive || !group || !last) return;
    const reason = last.isMention ? "mention" : group.members.length === 2 ? "direct" : "message";
    const title = titleOf(group, this.session.userId);
    const sender = nameOf(this, groupId, last.senderId);
    void this.history.texts(groupId, [last]).then(([text]) => {
      this.observer.call({ groupId, title, sender, text: last.selfDestructSeconds > 0 ? "" : (text ?? ""), reason });
    });
  }

  sent(groupId: Id, sendId: Id, number: number, batch: Batch): void {
    this.sending.arrived(groupId, sendId, number, batch);
  }

  answered(groupId: Id): Id[] {
    return this.sending.answered(groupId);
  }

  areGone(groupId: Id, sendIds: readonly Id[]): Promise<void> {
    return this.sending.areGone(groupId, sendIds);
  }

  policyChanged(groupId: Id, former: Retention | undefined, now: Retention): void {
    if (!former) return;
    const by = now.expiry_set_by;
    const admin = by === this.session.userId ? "you have" : by ? `${nameOf(this, groupId, by) || "an admin"} has` : "an admin has";
    this.notice(groupId, "info", told(former, now, admin));
  }

  means(groupId: Id, text: string): boolean {
    const members = this.mirror.listed.get(groupId)?.members ?? [];
    return means(text, this.session.username, members.map((each) => each.username));
  }

  groupGone(groupId: Id): void {
    if (this.conversation.groupId === groupId) this.conversation.open(null);
    for (const each of [this.notices, this.drafts]) each.delete(groupId);
    void this.sending.forgetGroup(groupId).catch((error: Error) => this.observer.failed(error));
  }

  private tell(news: News): void {
    if (news.kind === "keyChanged") {
      const name = nameOf(this, news.groupId, news.userId) || "a member";
      this.notice(news.groupId, "danger", `${name} has another key than before: compare it before you go on.`);
    } else if (news.kind === "notice") {
      const who = [news.userId, news.otherId].flatMap((each) => (each ? [nameOf(this, news.groupId, each) || "somebody"] : []));
      const kind = NOTICE_KINDS[news.what] ?? "info";
      this.notice(news.groupId, kind, who.length > 0 ? `${who.join(", ")}: ${news.sentence}` : news.sentence);
    }
    this.sending.goOnAll();
  }

  private notice(groupId: Id, kind: api.Notice["kind"], text: string): void {
    const notices = [...(this.notices.get(groupId) ?? []), { at: Math.floor(this.clock.now()), kind, text }];
    this.notices.set(groupId, notices.slice(-MOST_NOTICES));
  }

  // What the user does

  async seen(groupId: Id, numbers: readonly number[] | null): Promise<void> {
    await this.history.seen(groupId, numbers);
    this.sync.wake();
    this.observer.changed();
  }

  search(wanted: string, groupId?: Id): Promise<api.Found[]> {
    return search(this.parts, wanted, groupId);
  }

  async draft(groupId: Id, text: string): Promise<void> {
    if (!this.mirror.listed.has(groupId)) return;
    this.drafts.set(groupId, text);
    const batch = new Batch();
    await this.vault.write(text ? batch.put(["draft", groupId], text) : batch.delete(["draft", groupId]));
  }

  async send(groupId: Id, text: string, { selfDestructSeconds = 0, replyTo: number }: api.SendOptions = {}): Promise<void> {
    if (!text.trim()) throw new RefusedError(400, 0, "a message must not be empty");
    const whole = number === undefined ? text : await this.answer(groupId, number, text);
    if (utf8(whole).length > LONGEST_TEXT) throw new RefusedError(400, 0, `a message has more than ${LONGEST_TEXT} bytes`);
    // At once with its draft, or what was sent would be typed again after a reload.
    await this.sending.send(groupId, whole, selfDestructSeconds, new Batch().delete(["draft", groupId]));
    this.drafts.delete(groupId);
    await this.seen(groupId, null).catch((error: Error) => this.observer.failed(error)); // whoever writes has read
  }

  /** A self-destructing message is answered without its text, which would outlive it. */
  private async answer(groupId: Id, number: number, text: string): Promise<string> {
    const entry = this.history.group(groupId).find(number);
    if (!entry) return text;
    const [quoted] = entry.selfDestructSeconds > 0 ? [""] : await this.history.texts(groupId, [entry]);
    const name = nameOf(this, groupId, entry.senderId);
    return name ? replyTo(name, quoted ?? "", text) : text;
  }

  /** Takes a message back, with what repeats it. */
  async takeBack(groupId: Id, number: number): Promise<void> {
    await this.keys.gone(groupId, [number], true);
    for (const each of this.keys.repeated(groupId, number)) {
      await this.server.takeBack(groupId, each).catch((error: unknown) => {
        if (!hasCode(error, Code.NOT_FOUND)) throw error; // it is gone already
      });
      await this.keys.takenBack(groupId, each);
    }
    await this.server.takeBack(groupId, number);
    await this.mirror.takenBack(groupId, [number]);
  }

  async createGroup(title: string, name = nameFor(title)): Promise<Id> {
    const groupId = await this.membership.create(name, title === name ? "" : title);
    await this.mirror.readGroups();
    return groupId;
  }

  /** Opens or creates the group of two with a person. */
  async direct(username: string): Promise<Id> {
    const user = await this.server.user(username);
    if (user.user_id === this.session.userId) throw new RefusedError(400, 0, "that is you");
    const name = directName(this.session.username, user.username);
    const groups = [...this.mirror.listed.values()];
    const found =
      groups.find((each) => directOf(each, this.session.userId) === user.user_id) ?? groups.find((each) => each.group_name === name);
    if (found) return found.group_id;
    const groupId = await this.createGroup(name, name);
    try {
      await this.membership.invite(groupId, user.username);
    } catch (error) {
      await this.server.deleteGroup(groupId).catch(() => undefined);
      throw error;
    }
    return groupId;
  }

  async joinPublic(groupId: Id): Promise<void> {
    await this.membership.join(groupId);
    await this.mirror.readGroups();
  }

  async answerInvite(inviteId: Id, answer: "accept" | "decline"): Promise<void> {
    const invite = this.mirror.invites.find((each) => each.invite_id === inviteId);
    if (invite) this.mirror.inviters.set(invite.group_id, invite.inviter_id);
    try {
      await this.server.answerInvite(inviteId, answer);
    } finally {
      await this.mirror.readInvites();
      if (invite && answer === "accept") this.sync.refresh(invite.group_id);
    }
  }

  async leave(groupId: Id): Promise<void> {
    try {
      await this.membership.leave(groupId);
    } catch (error) {
      this.sync.lookAt(groupId); // the answer may be lost
      throw error;
    }
    await this.mirror.forgetGroup(groupId);
  }

  async deleteGroup(groupId: Id): Promise<void> {
    await this.server.deleteGroup(groupId);
    await this.mirror.forgetGroup(groupId);
  }

  async administration(groupId: Id): Promise<api.Administration> {
    const [invites, banned] = await Promise.all([this.server.invitesOf(groupId), this.server.banned(groupId)]);
    const names = await Promise.all(invites.map((each) => this.usernameOf(each.invitee_id)));
    return {
      invites: invites.map((each, at) => ({ userId: each.invitee_id, username: names[at]!, createdAt: each.created_at })),
      banned: banned.map((each) => ({ userId: each.user_id, username: each.username, bannedAt: each.banned_at })),
    };
  }

  private async usernameOf(userId: Id): Promise<string> {
    return (await this.server.userById(userId).catch(() => null))?.username ?? "";
  }

  async changeGroup(groupId: Id, change: { title?: string; name?: string; visibility?: api.Visibility }): Promise<void> {
    const { title, name, visibility } = change;
    await this.server.update(groupId, { alias: title, group_name: name, visibility });
    await this.mirror.readGroups();
  }

  async setExpiry(groupId: Id, seconds: number): Promise<void> {
    await this.server.update(groupId, { message_expiry_seconds: seconds, update_message_expiry: true });
    await this.mirror.readPolicy(groupId);
  }

  async tryExpiry(groupId: Id, seconds: number): Promise<api.DryRun> {
    const change = { message_expiry_seconds: seconds, update_message_expiry: true, dry_run: true };
    const [found, configured] = await Promise.all([this.server.update(groupId, change), this.server.retentionConfiguration()]);
    const server = this.mirror.retentions.get(groupId)?.server_retention_seconds ?? -1;
    return {
      messagesExpiring: found.messages_expiring,
      oldestExpiring: found.oldest_expiring,
      effective: effective(groupId, seconds, server, configured),
    };
  }

  code(fingerprint: string): Promise<api.Code> {
    return comparisonCode(this.keys.packages.fingerprint, fingerprint);
  }

  async judge(userId: Id, fingerprint: string, trust: "verified" | "unknown"): Promise<void> {
    if (!(await this.keys.judge(userId, fingerprint, trust)))
      throw new RefusedError(400, 0, "this person does not have this key any more: look again");
    this.sending.goOnAll();
    this.sync.wake();
    this.observer.changed();
  }

  async resetKeys(): Promise<void> {
    await this.server.resetAccount();
    await this.keys.newKeys();
    this.sync.uploadAnew();
    this.observer.changed();
  }
}

const NOTICE_KINDS: Partial<Record<(News & { kind: "notice" })["what"], api.Notice["kind"]>> = {
  refused: "danger",
  replaced: "danger",
  stranger: "warning",
  lost: "warning",
  restored: "warning",
};
