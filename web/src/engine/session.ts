/** The session of the engine: opens the storage, logs in and out, and builds the views. */

import type * as api from "./api";
import { Account, type Session } from "./account";
import { Server } from "./server/server";
import { Transport } from "./server/transport";
import { Batch, type Vault } from "./store/vault";

/** Changes within this time are shown in one view. */
const VIEW_DELAY_MS = 30;

/** The environment of the engine. `base`: the origin of the server; "" in the page. */
export interface Environment {
  base: string;
  openVault(): Promise<Vault>;
  onView(view: api.View): void;
  onAlert(alert: api.Alert): void;
}

const OFFLINE: api.Connection = { state: "offline", why: "", retryAt: 0 };
const SESSION_ENDED = "Your session has ended. Log in again: messages on this device are kept.";

export class SessionManager {
  private phase: api.View["phase"] = "starting";
  private fault = "";
  private vault!: Vault;
  protected account: Account | null = null;
  private isDirty = false;
  private isShowing = false;
  /** Incremented when the account is replaced, so that pending work of the former one has no effect. */
  private generation = 0;
  private wiping: Promise<void> = Promise.resolve();

  constructor(private readonly environment: Environment) {}

  /** Opens the storage, and resumes the session if there is one. */
  async start(): Promise<void> {
    const { generation } = this;
    try {
      this.vault = await this.environment.openVault();
      const session = await this.vault.get<Session>(["session"]);
      if (session) await this.openAccount(session, this.generationCheck());
      else this.phase = "out";
    } catch (error) {
      if (generation === this.generation) this.onStorageError(error as Error);
    }
    this.onChange();
  }

  /** Shows that another tab uses the account. */
  showTaken(): void {
    this.phase = "taken";
    this.onChange();
  }

  /** Stops all work; the storage is kept. */
  async close(): Promise<void> {
    await this.account?.close();
    await this.vault.close();
  }

  /** Returns a function that throws if the account was replaced since this call. */
  private generationCheck(): () => void {
    const { generation } = this;
    return () => {
      if (generation !== this.generation) throw new Error("you have logged out");
    };
  }

  private async openAccount(session: Session, check: () => void): Promise<void> {
    const server = new Server(new Transport(this.environment.base));
    server.transport.token = session.token;
    const { generation } = this;
    const ifCurrent = (work: () => void): void => {
      if (generation === this.generation) work();
    };
    const account = await Account.open(session, this.vault, server, {
      onChange: () => ifCurrent(() => this.onChange()),
      onAlert: (alert) => ifCurrent(() => this.environment.onAlert(alert)),
      onSessionEnd: () => ifCurrent(() => this.onSessionEnd()),
      onStorageError: (error) => ifCurrent(() => this.onStorageError(error)),
    });
    check();
    this.account = account;
    this.phase = session.token ? "in" : "out";
    this.fault = session.token ? "" : SESSION_ENDED;
    if (session.token) account.start();
    this.onChange();
  }

  private onSessionEnd(): void {
    this.phase = "out";
    this.fault = SESSION_ENDED;
    if (this.account) this.account.session.token = "";
    this.onChange();
  }

  private onStorageError(error: Error | null): void {
    this.fault = error ? `This browser cannot store data: ${error.message}` : "";
    if (error && !this.account) this.phase = "failed";
    this.onChange();
  }

  /** Shows that the browser lacks a requirement. */
  showUnsupported(why: string): void {
    this.phase = "failed";
    this.fault = why;
    this.onChange();
  }

  // The view

  protected onChange(): void {
    this.isDirty = true;
    if (!this.isShowing) setTimeout(() => void this.show(), VIEW_DELAY_MS);
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
      if (!this.isDirty) this.fault = error instanceof Error ? error.message : String(error); // otherwise the next view replaces it
    } finally {
      this.isShowing = false;
      if (this.isDirty) this.onChange();
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
        fingerprint: account.keys.ownKeys.fingerprint,
      },
      connection: isIn ? account.sync.shownConnection : OFFLINE,
      clockOffset: clock?.anchor ? clock.now() - Date.now() / 1000 : null,
      groups: isIn ? account.groups() : [],
      invites: isIn ? account.invites() : [],
      conversation: isIn ? await account.conversation.view(account.parts) : null,
    };
  }

  // Account and session

  async register(username: string, password: string, registrationToken?: string): Promise<void> {
    await new Server(new Transport(this.environment.base)).register(username, password, registrationToken || undefined);
    await this.login(username, password, true);
  }

  async login(username: string, password: string, replaceDevice = false): Promise<"in" | "otherDevice"> {
    const check = this.generationCheck();
    const server = new Server(new Transport(this.environment.base));
    const { token, user_id: userId, username: name } = await server.login(username, password);
    server.transport.token = token;
    const me = await server.me();
    check();
    const isSame = this.account?.session.userId === userId;
    const listed = me.signing_key_fingerprint;
    const isOwn = isSame && listed === this.account?.keys.ownKeys.fingerprint;
    if (listed && !isOwn && !replaceDevice) {
      await server.logout().catch(() => undefined);
      return "otherDevice";
    }
    await this.replaceSession({ token, userId, username: name, alias: me.alias }, isSame);
    return "in";
  }

  /** Switches to another session. `isSame`: it is of the same account, whose local data are kept. */
  private async replaceSession(session: Session, isSame: boolean): Promise<void> {
    const { account } = this;
    this.account = null;
    this.generation += 1;
    const check = this.generationCheck();
    await account?.close();
    check();
    if (!isSame) await this.wipe();
    check();
    await this.vault.write(new Batch().put(["session"], session));
    check();
    await this.openAccount(session, check);
  }

  /** Erases all local data, and opens an empty storage. */
  private wipe(): Promise<void> {
    const wiped = this.wiping.then(async () => {
      await this.vault.destroy();
      this.vault = await this.environment.openVault();
    });
    this.wiping = wiped.catch(() => undefined);
    return wiped;
  }

  async logout(): Promise<void> {
    this.vault.eraseKeys(); // first, so that no pending work can delay or undo it
    const { account } = this;
    this.account = null;
    this.generation += 1;
    this.phase = "out";
    this.fault = "";
    this.onChange();
    if (account) {
      await account.close();
      const server = new Server(new Transport(this.environment.base));
      server.transport.token = account.session.token;
      if (account.session.token) void server.logout().catch(() => undefined); // without a response it expires later
    }
    await this.wipe();
    this.onChange();
  }

  async deleteAccount(password: string): Promise<void> {
    const check = this.generationCheck();
    await this.server.deleteAccount(password);
    check();
    if (this.account) this.account.session.token = "";
    await this.logout();
  }

  async changePassword(current: string, next: string): Promise<void> {
    const check = this.generationCheck();
    const { session } = this.loggedIn;
    await this.server.changePassword(current, next); // ends all sessions
    check();
    const server = new Server(new Transport(this.environment.base));
    const { token } = await server.login(session.username, next);
    check();
    await this.replaceSession({ ...session, token }, true);
  }

  async setAlias(alias: string): Promise<void> {
    const check = this.generationCheck();
    const { session } = this.loggedIn;
    await this.server.setAlias(alias);
    check();
    session.alias = alias;
    await this.vault.write(new Batch().put(["session"], session));
    this.onChange();
  }

  async reconnect(): Promise<void> {
    this.account?.sync.reconnect();
  }

  /** The account. Throws if the user is not logged in. */
  protected get loggedIn(): Account {
    if (!this.account || this.phase !== "in") throw new Error("you are not logged in");
    return this.account;
  }

  protected get server(): Server {
    const server = new Server(new Transport(this.environment.base));
    server.transport.token = this.loggedIn.session.token;
    return server;
  }
}
