/** The engine: logging in and out, and the commands of the page. */

import type * as api from "./api";
import type { Id } from "./api";
import { Account, type Session } from "./account";
import { Server } from "./server/server";
import { Transport } from "./server/transport";
import { Batch, type Vault } from "./store/vault";

/** Several changes that come together are shown at once. */
const SHOWN_AFTER_MS = 30;

/** What the engine runs in. `base`: the origin of the server; "" in the page. */
export interface Environment {
  base: string;
  openVault(): Promise<Vault>;
  onView(view: api.View): void;
  onCall(call: api.Call): void;
}

const OFFLINE: api.Connection = { state: "offline", why: "", retryAt: 0 };
const OVER = "Your session is over: log in again. Messages that are here stay.";

export class Engine implements api.Engine {
  private phase: api.View["phase"] = "starting";
  private fault = "";
  private vault!: Vault;
  private account: Account | null = null;
  private isDirty = false;
  private isShowing = false;
  /** Grows when the account goes that is here: what is under way for it then has no effect any more. */
  private generation = 0;
  private wiping: Promise<void> = Promise.resolve();

  constructor(private readonly environment: Environment) {}

  /** Opens what is here, and goes on with the account that is logged in. */
  async start(): Promise<void> {
    const { generation } = this;
    try {
      this.vault = await this.environment.openVault();
      const session = await this.vault.get<Session>(["session"]);
      if (session) await this.go(session, this.guard());
      else this.phase = "out";
    } catch (error) {
      if (generation === this.generation) this.fail(error as Error);
    }
    this.changed();
  }

  /** Another tab has the account. */
  isTaken(): void {
    this.phase = "taken";
    this.changed();
  }

  /** Ends what goes on, and keeps everything. */
  async close(): Promise<void> {
    await this.account?.close();
    await this.vault.close();
  }

  /** Makes what throws once the account has gone that is here now. */
  private guard(): () => void {
    const { generation } = this;
    return () => {
      if (generation !== this.generation) throw new Error("you have logged out meanwhile");
    };
  }

  private async go(session: Session, check: () => void): Promise<void> {
    const server = new Server(new Transport(this.environment.base));
    server.transport.token = session.token;
    const { generation } = this;
    const ifHere = (work: () => void): void => {
      if (generation === this.generation) work();
    };
    const account = await Account.open(session, this.vault, server, {
      changed: () => ifHere(() => this.changed()),
      call: (call) => ifHere(() => this.environment.onCall(call)),
      sessionIsOver: () => ifHere(() => this.sessionIsOver()),
      failed: (error) => ifHere(() => this.fail(error)),
    });
    check();
    this.account = account;
    this.phase = session.token ? "in" : "out";
    this.fault = session.token ? "" : OVER;
    if (session.token) account.start();
    this.changed();
  }

  private sessionIsOver(): void {
    this.phase = "out";
    this.fault = OVER;
    if (this.account) this.account.session.token = "";
    this.changed();
  }

  private fail(error: Error | null): void {
    this.fault = error ? `nothing can be stored in this browser: ${error.message}` : "";
    if (error && !this.account) this.phase = "failed";
    this.changed();
  }

  /** The browser lacks what is needed. */
  cannotRun(why: string): void {
    this.phase = "failed";
    this.fault = why;
    this.changed();
  }

  // The view

  private changed(): void {
    this.isDirty = true;
    if (!this.isShowing) setTimeout(() => void this.show(), SHOWN_AFTER_MS);
    this.isShowing = true;
  }

  private async show(): Promise<void> {
    try {
      while (this.isDirty) {
        this.isDirty = false;
        const { generation } = this;
        const view = await this.view();
        if (generation === this.generation) this.environment.onView(view);
      }
    } catch (error) {
      if (!this.isDirty) this.fault = error instanceof Error ? error.message : String(error); // or it is of what was before
    } finally {
      this.isShowing = false;
      if (this.isDirty) this.changed();
    }
  }

  private async view(): Promise<api.View> {
    const { phase, fault, account } = this;
    const isIn = account !== null && phase === "in";
    const clock = account?.clock;
    return {
      phase,
      fault,
      account: account && {
        userId: account.session.userId,
        username: account.session.username,
        alias: account.session.alias,
        fingerprint: account.keys.packages.fingerprint,
      },
      connection: isIn ? account.sync.connection : OFFLINE,
      clockOffset: clock?.anchor ? clock.now() - Date.now() / 1000 : null,
      groups: isIn ? account.groups() : [],
      invites: isIn ? account.invites() : [],
      conversation: isIn ? await account.conversation.view(account.parts) : null,
    };
  }

  // Coming and going

  async register(username: string, password: string, registrationToken?: string): Promise<void> {
    await new Server(new Transport(this.environment.base)).register(username, password, registrationToken || undefined);
    await this.login(username, password, true);
  }

  async login(username: string, password: string, evenSo = false): Promise<"in" | "otherDevice"> {
    const check = this.guard();
    const server = new Server(new Transport(this.environment.base));
    const { token, user_id: userId, username: name } = await server.login(username, password);
    server.transport.token = token;
    const me = await server.me();
    check();
    const isSame = this.account?.session.userId === userId;
    const listed = me.signing_key_fingerprint;
    const isOwn = isSame && listed === this.account?.keys.packages.fingerprint;
    if (listed && !isOwn && !evenSo) {
      await server.logout().catch(() => undefined);
      return "otherDevice";
    }
    await this.replace({ token, userId, username: name, alias: me.alias }, isSame);
    return "in";
  }

  /** Goes on with another session. `isSame`: what is here is of the same account, and stays. */
  private async replace(session: Session, isSame: boolean): Promise<void> {
    const { account } = this;
    this.account = null;
    this.generation += 1;
    const check = this.guard();
    await account?.close();
    check();
    if (!isSame) await this.wipe();
    check();
    await this.vault.write(new Batch().put(["session"], session));
    check();
    await this.go(session, check);
  }

  /** Erases everything, and begins with an empty store. */
  private wipe(): Promise<void> {
    const wiped = this.wiping.then(async () => {
      await this.vault.destroy();
      this.vault = await this.environment.openVault();
    });
    this.wiping = wiped.catch(() => undefined);
    return wiped;
  }

  async logout(): Promise<void> {
    this.vault.eraseKeys(); // first: nothing that is still under way can put it off, or undo it
    const { account } = this;
    this.account = null;
    this.generation += 1;
    this.phase = "out";
    this.fault = "";
    this.changed();
    if (account) {
      await account.close();
      const server = new Server(new Transport(this.environment.base));
      server.transport.token = account.session.token;
      if (account.session.token) void server.logout().catch(() => undefined); // without an answer it ends by itself later
    }
    await this.wipe();
    this.changed();
  }

  async deleteAccount(password: string): Promise<void> {
    const check = this.guard();
    await this.server.deleteAccount(password);
    check();
    if (this.account) this.account.session.token = "";
    await this.logout();
  }

  async changePassword(current: string, next: string): Promise<void> {
    const check = this.guard();
    const { session } = this.in;
    await this.server.changePassword(current, next); // ends all sessions
    check();
    const server = new Server(new Transport(this.environment.base));
    const { token } = await server.login(session.username, next);
    check();
    await this.replace({ ...session, token }, true);
  }

  async setAlias(alias: string): Promise<void> {
    const check = this.guard();
    const { session } = this.in;
    await this.server.setAlias(alias);
    check();
    session.alias = alias;
    await this.vault.write(new Batch().put(["session"], session));
    this.changed();
  }

  async wake(): Promise<void> {
    this.account?.sync.reconnect();
  }

  /** The account. Throws if nobody is logged in. */
  private get in(): Account {
    if (!this.account || this.phase !== "in") throw new Error("nobody is logged in");
    return this.account;
  }

  private get server(): Server {
    const server = new Server(new Transport(this.environment.base));
    server.transport.token = this.in.session.token;
    return server;
  }

  // The open conversation

  async open(groupId: Id | null, around?: number): Promise<void> {
    const { conversation, mirror } = this.in;
    if (groupId === null || mirror.listed.has(groupId)) conversation.open(groupId, around);
    this.changed();
  }

  async more(towards: "earlier" | "later"): Promise<void> {
    this.in.conversation.more(towards);
    this.changed();
  }

  async toEnd(): Promise<void> {
    this.in.conversation.toEnd();
    this.changed();
  }

  whole(number: number): Promise<string | null> {
    return this.in.conversation.whole(number);
  }

  seen(groupId: Id, numbers: number[]): Promise<void> {
    return this.in.seen(groupId, numbers);
  }

  readAll(groupId: Id): Promise<void> {
    return this.in.seen(groupId, null);
  }

  search(text: string, groupId?: Id): Promise<api.Found[]> {
    return this.in.search(text, groupId);
  }

  draft(groupId: Id, text: string): Promise<void> {
    return this.in.draft(groupId, text);
  }

  async send(groupId: Id, text: string, options?: api.SendOptions): Promise<void> {
    await this.in.send(groupId, text, options);
    if (this.account?.conversation.groupId === groupId) await this.toEnd();
  }

  async retry(groupId: Id): Promise<void> {
    await this.in.sending.retry(groupId);
  }

  async discard(groupId: Id, sendId: Id): Promise<void> {
    await this.in.sending.discard(groupId, sendId);
  }

  takeBack(groupId: Id, number: number): Promise<void> {
    return this.in.takeBack(groupId, number);
  }

  // Groups

  createGroup(title: string, name?: string): Promise<Id> {
    return this.in.createGroup(title, name);
  }

  direct(username: string): Promise<Id> {
    return this.in.direct(username);
  }

  async findPublic(pattern: string): Promise<api.PublicGroup[]> {
    const found = await this.server.publicGroups(pattern);
    return found.map((each) => ({
      groupId: each.group_id,
      name: each.group_name,
      title: each.alias || each.group_name,
      memberCount: each.member_count,
    }));
  }

  joinPublic(groupId: Id): Promise<void> {
    return this.in.joinPublic(groupId);
  }

  accept(inviteId: Id): Promise<void> {
    return this.in.answerInvite(inviteId, "accept");
  }

  decline(inviteId: Id): Promise<void> {
    return this.in.answerInvite(inviteId, "decline");
  }

  leave(groupId: Id): Promise<void> {
    return this.in.leave(groupId);
  }

  deleteGroup(groupId: Id): Promise<void> {
    return this.in.deleteGroup(groupId);
  }

  invite(groupId: Id, username: string): Promise<void> {
    return this.in.membership.invite(groupId, username);
  }

  cancelInvite(groupId: Id, userId: Id): Promise<void> {
    return this.server.cancelInvite(groupId, userId);
  }

  administration(groupId: Id): Promise<api.Administration> {
    return this.in.administration(groupId);
  }

  removeMember(groupId: Id, userId: Id): Promise<void> {
    return this.in.membership.remove("remove", groupId, userId);
  }

  ban(groupId: Id, userId: Id): Promise<void> {
    return this.in.membership.remove("ban", groupId, userId);
  }

  unban(groupId: Id, userId: Id): Promise<void> {
    return this.server.unban(groupId, userId);
  }

  setRole(groupId: Id, userId: Id, role: api.Role): Promise<void> {
    return this.server.setRole(groupId, userId, role);
  }

  changeGroup(groupId: Id, change: { title?: string; name?: string; visibility?: api.Visibility }): Promise<void> {
    return this.in.changeGroup(groupId, change);
  }

  setExpiry(groupId: Id, seconds: number): Promise<void> {
    return this.in.setExpiry(groupId, seconds);
  }

  tryExpiry(groupId: Id, seconds: number): Promise<api.DryRun> {
    return this.in.tryExpiry(groupId, seconds);
  }

  // Keys

  code(_userId: Id, fingerprint: string): Promise<api.Code> {
    return this.in.code(fingerprint);
  }

  verify(userId: Id, fingerprint: string): Promise<void> {
    return this.in.judge(userId, fingerprint, "verified");
  }

  acceptKey(userId: Id, fingerprint: string): Promise<void> {
    return this.in.judge(userId, fingerprint, "unknown");
  }

  resetKeys(): Promise<void> {
    return this.in.resetKeys();
  }
}

/** Does a command, and tells what went wrong as the page is told. */
export async function perform(engine: Engine, { command, args }: api.Request): Promise<unknown> {
  const work = engine[command] as (...each: unknown[]) => Promise<unknown>;
  return work.apply(engine, args);
}
