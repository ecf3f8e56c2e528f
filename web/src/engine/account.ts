/** A logged-in account: its local state, and the actions of its user. */

import type * as api from "./api";
import type { Id } from "./api";
import { Conversation } from "./conversation";
import { comparisonCode } from "./encryption/comparison";
import type { News } from "./encryption/transaction";
import { Encryption, MAX_TEXT_BYTES } from "./encryption/encryption";
import { History, type Entry } from "./history";
import { Membership } from "./membership";
import { Mirror, type MirrorObserver } from "./mirror";
import { directNames, namesFor } from "./names";
import { effectiveExpiry, policyNotice } from "./policy";
import { search } from "./search";
import { SendQueue } from "./sending";
import { ServerClock, type Anchor } from "./server/clock";
import { Code, hasCode, RefusedError } from "./server/errors";
import type { Server } from "./server/server";
import type { Retention } from "./server/wire";
import { Batch, type Vault } from "./store/vault";
import { Sync } from "./sync";
import { utf8 } from "./bytes";
import { mentions, withReplyTo } from "./texts";
import { directOf, groupView, nameOf, titleOf, type Parts } from "./view";

/** Notices per group that are kept in memory. */
const MAX_NOTICES = 50;
/** The server's time is stored at most once a minute. */
const CLOCK_SAVE_SECONDS = 60;

export interface Session {
  token: string;
  userId: Id;
  username: string;
  alias: string;
}

/** Callbacks of an account to the engine. */
export interface AccountObserver {
  onChange(): void;
  onAlert(alert: api.Alert): void;
  onSessionEnd(): void;
  /** The storage has failed; null: it works again. */
  onStorageError(error: Error | null): void;
}

export class Account implements MirrorObserver {
  readonly drafts = new Map<Id, string>();
  readonly notices = new Map<Id, api.Notice[]>();
  readonly names = new Map<Id, string>();
  readonly conversation: Conversation;
  readonly mirror: Mirror;
  readonly sync: Sync;
  readonly sending: SendQueue;
  readonly membership: Membership;
  private announcedInvites = new Set<Id>();

  private constructor(
    readonly session: Session,
    private readonly vault: Vault,
    private readonly server: Server,
    readonly clock: ServerClock,
    readonly history: History,
    readonly keys: Encryption,
    private readonly observer: AccountObserver,
  ) {
    const onChange = (): void => observer.onChange();
    const fetchSoon = (groupId: Id): void => this.sync.fetchSoon(groupId);
    this.mirror = new Mirror(server, vault, history, keys, clock, this);
    this.conversation = new Conversation(history, server, session.userId, this.names, onChange);
    this.sending = new SendQueue(
      vault,
      server,
      keys,
      () => this.sync.connection.state === "online",
      fetchSoon,
      onChange,
      (error) => observer.onStorageError(error),
      (groupId, number) => this.takeBack(groupId, number),
    );
    this.membership = new Membership(server, keys, (groupId) => this.sync.refresh(groupId));
    this.sync = new Sync(server, history, keys, this.mirror, clock, {
      onChange: () => this.onChange(),
      onReady: () => this.sending.resumeAll(),
      onSessionEnd: () => observer.onSessionEnd(),
      onStorageError: (error) => observer.onStorageError(error),
    });
  }

  /** Opens the local state of an account. Erases expired messages before it returns. */
  static async open(session: Session, vault: Vault, server: Server, observer: AccountObserver): Promise<Account> {
    const clock = new ServerClock((await vault.get<Anchor>(["clock"])) ?? null);
    const history = await History.open(vault, session.userId, clock);
    const keys = await Encryption.open(vault, session.userId, () => Math.floor(clock.confirmedNow()));
    const made = new Account(session, vault, server, clock, history, keys, observer);
    for (const groupId of keys.ids()) {
      const group = history.has(groupId) ? history.group(groupId) : null;
      const erased = keys.keptNumbers(groupId).filter((each) => !group?.find(each));
      if (erased.length > 0) await keys.eraseMessages(groupId, erased);
    }
    await made.mirror.open();
    await made.sending.open();
    for (const key of vault.keys("draft")) made.drafts.set(String(key[1]), (await vault.get<string>(key)) ?? "");
    let saved = clock.anchor;
    server.transport.onTime = (date) => {
      clock.recordTime(date);
      const { anchor } = clock;
      if (!anchor || (saved && anchor.at.start === saved.at.start && anchor.at.wall - saved.at.wall < CLOCK_SAVE_SECONDS)) return;
      saved = anchor;
      void vault.write(new Batch().put(["clock"], anchor)).catch((error: Error) => observer.onStorageError(error));
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

  // Views

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

  // Callbacks of the mirror

  onChange(): void {
    for (const news of this.keys.takeNews()) this.addNotices(news);
    const invites = new Set(this.mirror.invites.map((each) => each.invite_id));
    for (const each of this.mirror.invites) {
      if (this.announcedInvites.has(each.invite_id) || this.sync.connection.state !== "online") continue;
      const title = each.group_alias || each.group_name;
      this.observer.onAlert({ groupId: each.group_id, title, sender: each.inviter_username, text: "", reason: "invite" });
    }
    this.announcedInvites = invites;
    this.observer.onChange();
  }

  onMessages(groupId: Id, entries: readonly Entry[], isLive: boolean): void {
    const group = this.mirror.listed.get(groupId);
    const others = entries.filter((each) => each.senderId !== this.session.userId && each.isReadable);
    const last = others.findLast((each) => each.isMention) ?? others.at(-1);
    if (!isLive || !group || !last) return;
    const reason = last.isMention ? "mention" : group.members.length === 2 ? "direct" : "message";
    const title = titleOf(group, this.session.userId);
    const sender = nameOf(this, groupId, last.senderId);
    void this.history.texts(groupId, [last]).then(([text]) => {
      this.observer.onAlert({ groupId, title, sender, text: last.selfDestructSeconds > 0 ? "" : (text ?? ""), reason });
    });
  }

  onOwnMessage(groupId: Id, sendId: Id, number: number, batch: Batch): void {
    this.sending.onReceived(groupId, sendId, number, batch);
  }

  acceptedSends(groupId: Id): Id[] {
    return this.sending.accepted(groupId);
  }

  onSendsExpired(groupId: Id, sendIds: readonly Id[]): Promise<void> {
    return this.sending.dropExpired(groupId, sendIds);
  }

  onPolicyChange(groupId: Id, former: Retention | undefined, now: Retention): void {
    if (!former) return;
    const by = now.expiry_set_by;
    const admin = by === this.session.userId ? "You" : (by && nameOf(this, groupId, by)) || "An admin";
    this.notice(groupId, "info", policyNotice(former, now, admin));
  }

  isMention(groupId: Id, text: string): boolean {
    const members = this.mirror.listed.get(groupId)?.members ?? [];
    return mentions(text, this.session.username, members.map((each) => each.username));
  }

  onGroupRemoved(groupId: Id): void {
    if (this.conversation.groupId === groupId) this.conversation.open(null);
    for (const each of [this.notices, this.drafts]) each.delete(groupId);
    void this.sending.forgetGroup(groupId).catch((error: Error) => this.observer.onStorageError(error));
  }

  private addNotices(news: News): void {
    if (news.kind === "keyChanged") {
      const name = nameOf(this, news.groupId, news.userId) || "A member";
      this.notice(news.groupId, "danger", `${name}'s key changed: a new or reset device. Compare keys before you continue.`);
    } else if (news.kind === "notice") {
      const who = [news.userId, news.otherId].flatMap((each) => (each ? [nameOf(this, news.groupId, each) || "unknown user"] : []));
      const kind = NOTICE_KINDS[news.what] ?? "info";
      this.notice(news.groupId, kind, who.length > 0 ? `${who.join(", ")}: ${news.sentence}` : news.sentence);
    }
    this.sending.resumeAll();
  }

  private notice(groupId: Id, kind: api.Notice["kind"], text: string): void {
    const notices = [...(this.notices.get(groupId) ?? []), { at: Math.floor(this.clock.now()), kind, text }];
    this.notices.set(groupId, notices.slice(-MAX_NOTICES));
  }

  // Actions of the user

  /** Marks messages as seen. `numbers`: null: all except self-destructing ones. */
  async markSeen(groupId: Id, numbers: readonly number[] | null): Promise<void> {
    await this.history.markSeen(groupId, numbers);
    this.sync.wake();
    this.observer.onChange();
  }

  search(query: string, groupId?: Id): Promise<api.SearchResult[]> {
    return search(this.parts, query, groupId);
  }

  async saveDraft(groupId: Id, text: string): Promise<void> {
    if (!this.mirror.listed.has(groupId)) return;
    this.drafts.set(groupId, text);
    const batch = new Batch();
    await this.vault.write(text ? batch.put(["draft", groupId], text) : batch.delete(["draft", groupId]));
  }

  async send(groupId: Id, text: string, { selfDestructSeconds = 0, replyTo: number }: api.SendOptions = {}): Promise<void> {
    if (!text.trim()) throw new RefusedError(400, 0, "a message must not be empty");
    const whole = number === undefined ? text : await this.withQuote(groupId, number, text);
    if (utf8(whole).length > MAX_TEXT_BYTES) throw new RefusedError(400, 0, `a message has at most ${MAX_TEXT_BYTES} bytes`);
    // The draft is deleted in the same transaction, so that it does not reappear after a reload.
    await this.sending.send(groupId, whole, selfDestructSeconds, new Batch().delete(["draft", groupId]));
    this.drafts.delete(groupId);
    await this.markSeen(groupId, null).catch((error: Error) => this.observer.onStorageError(error));
  }

  /** Adds a quote to a reply. Self-destructing messages are not quoted: the quote would outlive them. */
  private async withQuote(groupId: Id, number: number, text: string): Promise<string> {
    const entry = this.history.group(groupId).find(number);
    if (!entry) return text;
    const [quoted] = entry.selfDestructSeconds > 0 ? [""] : await this.history.texts(groupId, [entry]);
    const name = nameOf(this, groupId, entry.senderId);
    return name ? withReplyTo(name, quoted ?? "", text) : text;
  }

  /** Takes a message back, with its repetitions. */
  async takeBack(groupId: Id, number: number): Promise<void> {
    await this.keys.eraseMessages(groupId, [number], true);
    for (const each of this.keys.repeatsOf(groupId, number)) {
      await this.server.takeBack(groupId, each).catch((error: unknown) => {
        if (!hasCode(error, Code.NOT_FOUND)) throw error; // already deleted
      });
      await this.keys.recordTakenBack(groupId, each);
    }
    await this.server.takeBack(groupId, number);
    await this.mirror.onTakenBack(groupId, [number]);
  }

  createGroup(title: string, name?: string): Promise<Id> {
    return this.createNamed(name === undefined ? namesFor(title) : [name], title);
  }

  /** Creates a group with the first of these names that is not taken. */
  private async createNamed([name, ...others]: readonly string[], title: string): Promise<Id> {
    let groupId: Id;
    try {
      groupId = await this.membership.create(name!, title === name ? "" : title);
    } catch (error) {
      if (others.length === 0 || !hasCode(error, Code.CONFLICT)) throw error;
      return this.createNamed(others, title);
    }
    await this.mirror.readGroups();
    return groupId;
  }

  /** Returns the group for direct messages with a user; creates it if necessary. */
  async openDirect(username: string): Promise<Id> {
    const user = await this.server.user(username);
    if (user.user_id === this.session.userId) throw new RefusedError(400, 0, "you cannot message yourself");
    const names = directNames(this.session.username, user.username);
    const groups = [...this.mirror.listed.values()];
    const found =
      groups.find((each) => directOf(each, this.session.userId) === user.user_id) ?? groups.find((each) => names.includes(each.group_name));
    if (found) return found.group_id;
    const groupId = await this.createNamed(names, "");
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
      this.sync.fetchSoon(groupId); // the response may be lost
      throw error;
    }
    await this.mirror.removeGroup(groupId);
  }

  async deleteGroup(groupId: Id): Promise<void> {
    await this.server.deleteGroup(groupId);
    await this.mirror.removeGroup(groupId);
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

  async previewExpiry(groupId: Id, seconds: number): Promise<api.DryRun> {
    const change = { message_expiry_seconds: seconds, update_message_expiry: true, dry_run: true };
    const [found, configured] = await Promise.all([this.server.update(groupId, change), this.server.retentionConfiguration()]);
    const server = this.mirror.retentions.get(groupId)?.server_retention_seconds ?? -1;
    return {
      messagesExpiring: found.messages_expiring,
      oldestExpiring: found.oldest_expiring,
      effective: effectiveExpiry(groupId, seconds, server, configured),
    };
  }

  code(fingerprint: string): Promise<api.Code> {
    return comparisonCode(this.keys.ownKeys.fingerprint, fingerprint);
  }

  async setTrust(userId: Id, fingerprint: string, trust: "verified" | "unknown"): Promise<void> {
    if (!(await this.keys.setTrust(userId, fingerprint, trust)))
      throw new RefusedError(400, 0, "this key is no longer in use: compare keys again");
    this.sending.resumeAll();
    this.sync.wake();
    this.observer.onChange();
  }

  async resetKeys(): Promise<void> {
    await this.server.resetAccount();
    await this.keys.resetKeys();
    this.sync.uploadKeys();
    this.observer.onChange();
  }
}

const NOTICE_KINDS: Partial<Record<(News & { kind: "notice" })["what"], api.Notice["kind"]>> = {
  refused: "danger",
  replaced: "danger",
  stranger: "warning",
  lost: "warning",
  restored: "warning",
};
