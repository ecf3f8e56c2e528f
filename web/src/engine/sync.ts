/**
 * Keeps what is here in step with the server: it listens first, then fetches everything after what is here, and from then on
 * takes events as hints to fetch. What is lost on the way is fetched later.
 */

import type { Connection, Id } from "./api";
import type { Encryption } from "./encryption/encryption";
import { REGULAR } from "./encryption/packages";
import { Keeper } from "./encryption/keeper";
import type { History } from "./history";
import type { Mirror } from "./mirror";
import { Repeating } from "./repeating";
import type { ServerClock } from "./server/clock";
import { isSessionOver } from "./server/errors";
import { listen } from "./server/events";
import type { Server } from "./server/server";
import { delayAfter, sleep } from "./server/transport";
import { StorageError } from "./store/vault";
import type { ServerEvent } from "./server/wire";

/** A stream that has lasted for 5 seconds was a connection: after its end it is tried again at once. */
const STEADY_MS = 5_000;
/** What may not be here any more goes within a quarter of a second. */
const TICK_MS = 250;
/** After a step that failed nothing is tried again for so long. */
const PAUSE_MS = 1_000;

/** What the engine hears of. */
export interface SyncObserver {
  /** The connection is another one, or something is due to be told. */
  changed(): void;
  /** The connection is there, and all was read. */
  isReady(): void;
  sessionIsOver(): void;
  /** The storage has failed; null: it works again. */
  failed(error: Error | null): void;
}

export class Sync {
  connection: Connection = { state: "connecting", why: "", retryAt: 0 };
  readonly keeper: Keeper;
  private readonly repeating: Repeating;
  private readonly stop = new AbortController();
  private wakeUp: () => void = () => undefined;
  private isAwake = false;
  private readonly toFetch = new Set<Id>();
  private readonly toRefresh = new Set<Id>();
  private retry = new AbortController();
  private hasUploaded = false;
  private taken = 0;
  private ticker: ReturnType<typeof setInterval> | undefined;
  private isEnforcing = false;
  private hasFailed = false;
  /** When the server was asked for the time last, by `performance.now()`. */
  private askedAt = -Infinity;
  private running: Promise<void> = Promise.resolve();

  constructor(
    private readonly server: Server,
    private readonly history: History,
    private readonly keys: Encryption,
    private readonly mirror: Mirror,
    private readonly clock: ServerClock,
    private readonly observer: SyncObserver,
  ) {
    this.keeper = new Keeper(keys, server);
    this.repeating = new Repeating(server, history, keys, clock, (groupId) => this.lookAt(groupId));
  }

  start(): void {
    this.ticker = setInterval(() => void this.tick(), TICK_MS);
    this.running = this.run();
  }

  async close(): Promise<void> {
    clearInterval(this.ticker);
    this.stop.abort();
    this.retry.abort();
    this.wake();
    await this.running;
  }

  /** Connects now, if there is no connection. */
  reconnect(): void {
    this.retry.abort();
    this.wake();
  }

  /** Has a group fetched without an event: none tells of what the user has done. */
  lookAt(groupId: Id): void {
    this.toFetch.add(groupId);
    this.wake();
  }

  /** Has a group's policy, and the list of groups, read anew. */
  refresh(groupId: Id): void {
    this.toRefresh.add(groupId);
    this.wake();
  }

  wake(): void {
    this.isAwake = true;
    this.wakeUp();
  }

  /** The keys are others now: what is at the server is replaced. */
  uploadAnew(): void {
    this.hasUploaded = false;
    this.wake();
  }

  private async run(): Promise<void> {
    for (let failures = 0; !this.stop.signal.aborted; ) {
      const began = Date.now();
      let why = "the server has ended the stream";
      try {
        this.connect({ state: "connecting", why: "", retryAt: 0 });
        await this.follow();
      } catch (error) {
        if (this.stop.signal.aborted) return;
        if (isSessionOver(error)) return this.observer.sessionIsOver();
        if (error instanceof StorageError) this.observer.failed(error);
        why = error instanceof Error ? error.message : String(error);
      }
      failures = Date.now() - began >= STEADY_MS ? 1 : failures + 1;
      const wait = delayAfter(failures);
      this.retry = new AbortController();
      this.connect({ state: "offline", why, retryAt: Date.now() + wait });
      await sleep(wait, this.retry.signal);
    }
  }

  private connect(connection: Connection): void {
    this.connection = connection;
    this.observer.changed();
  }

  /** Goes by the events of a stream until it ends. */
  private async follow(): Promise<void> {
    const end = new AbortController();
    const abort = (): void => end.abort();
    this.stop.signal.addEventListener("abort", abort);
    const events: ServerEvent[] = [];
    let ended: { error?: unknown } | null = null;
    let opened: () => void = () => undefined;
    const isOpen = new Promise<void>((resolve) => (opened = resolve));
    const reading = (async () => {
      try {
        for await (const event of listen(this.server.transport, opened, end.signal)) {
          events.push(event);
          this.wake();
        }
        ended = {};
      } catch (error) {
        ended = { error };
      }
      opened();
      this.wake();
    })();
    const check = (): boolean => {
      if (ended && "error" in ended) throw ended.error;
      return ended !== null;
    };
    try {
      await isOpen;
      if (check()) return;
      await this.refill();
      await this.mirror.catchUp();
      this.connect({ state: "online", why: "", retryAt: 0 });
      this.observer.isReady();
      for (;;) {
        await this.wishes();
        const event = events.shift();
        if (event) await this.on(event);
        else if (check()) return;
        else await this.untilAwake();
      }
    } finally {
      this.stop.signal.removeEventListener("abort", abort);
      end.abort();
      await reading;
    }
  }

  private async untilAwake(): Promise<void> {
    if (!this.isAwake) await new Promise<void>((resolve) => (this.wakeUp = resolve));
    this.isAwake = false;
  }

  /** Does what does not wait for an event. */
  private async wishes(): Promise<void> {
    while (this.toRefresh.size > 0) {
      const [groupId] = this.toRefresh as Iterable<Id> as [Id];
      this.toRefresh.delete(groupId);
      await this.mirror.readGroups();
      await this.mirror.refresh(groupId);
    }
    while (this.toFetch.size > 0) {
      // Taken off first: what is sent while the last page is on its way may not be on it, and is asked for again.
      const groupId = [...this.toFetch][0]!;
      this.toFetch.delete(groupId);
      await this.mirror.fetch(groupId);
    }
    await this.mirror.tellRead();
    await this.refill();
    if (this.keeper.isDue) {
      const groups = await this.mirror.readGroups();
      for (const groupId of await this.keeper.settle(groups)) this.lookAt(groupId);
    }
    await this.repeating.send();
    if (this.wantsTime) {
      this.askedAt = performance.now();
      await this.server.me(); // any answer has the time
      if (this.clock.isKnown) await this.mirror.catchUp();
    }
    this.observer.changed();
  }

  /** Uploads key packages: some at the start, and one in place of each that was used. */
  private async refill(): Promise<void> {
    const begins = !this.hasUploaded || this.keys.packages.areDue;
    if (!begins && this.taken === 0) return;
    if (begins) this.keys.noteOwnKey((await this.server.me()).signing_key_fingerprint);
    const taken = this.taken;
    const made = await this.keys.packages.make(begins ? REGULAR : Math.min(taken, 2 * REGULAR), begins);
    if (made.replacesAll) await this.server.resetAccount(); // others would invite by keys that are not here any more
    await this.server.uploadKeyPackages(made.regular, made.lastResort, made.fingerprint);
    this.hasUploaded = true;
    this.taken -= taken;
  }

  private async on({ name, data }: ServerEvent): Promise<void> {
    const groupId = String(data.group_id ?? "");
    const number = Number(data.sequence_num ?? 0);
    switch (name) {
      case "lagged":
        return this.mirror.catchUp();
      case "new_message":
        if (number > this.history.group(groupId).fetchedUpTo) await this.mirror.fetch(groupId);
        return;
      case "group_deleted":
        return this.mirror.forgetGroup(groupId);
      case "message_redacted":
        return this.mirror.takenBack(groupId, [number]);
      case "welcome":
        this.taken += 1;
        await this.mirror.readGroups();
        await this.mirror.takeWelcomes();
        return this.mirror.refresh(groupId);
      case "invite_received":
        this.taken += 1;
        this.mirror.inviters.set(groupId, String(data.inviter_id ?? ""));
        return this.mirror.readInvites();
      case "invite_cancelled":
        return this.mirror.readInvites();
      case "invite_declined":
        return this.keys.agenda.want(groupId);
      case "member_removed":
        return this.removed(groupId, String(data.removed_user_id ?? ""));
      case "group_update":
      case "identity_reset":
        this.keys.agenda.want(groupId);
        await this.mirror.readGroups();
        return data.update_type === "commit" || name === "identity_reset" ? this.mirror.fetch(groupId) : this.mirror.refresh(groupId);
    }
  }

  /** A member is gone: another one perhaps with the account, and perhaps with a commit. */
  private async removed(groupId: Id, userId: Id): Promise<void> {
    this.keys.agenda.want(groupId);
    await this.mirror.readGroups();
    if (userId === this.keys.userId) return this.mirror.refresh(groupId); // the user may be back by now
    await this.mirror.forgetDeleted(groupId, [userId]);
    await this.mirror.fetch(groupId);
  }

  /** Enforces expiry, whether there is a connection or not; wakes what is due. */
  private async tick(): Promise<void> {
    if (this.isEnforcing) return;
    this.isEnforcing = true;
    try {
      for (const { groupId, numbers } of await this.history.enforce()) {
        await this.keys.gone(groupId, numbers);
        this.observer.changed();
      }
      if (this.hasFailed) this.observer.failed(null);
      this.hasFailed = false;
    } catch (error) {
      this.hasFailed = true;
      this.observer.failed(error as Error);
    } finally {
      this.isEnforcing = false;
    }
    if (this.keeper.isDue || this.wantsTime) this.wake();
  }

  /** Whether to ask the server for the time: a doubt ends by several answers, its silence by one. */
  private get wantsTime(): boolean {
    return this.clock.wantsAnswers && performance.now() - this.askedAt >= PAUSE_MS;
  }
}
