/**
 * Keeps the local state in sync with the server: it opens the event stream first, then fetches everything new, and then
 * treats events as hints to fetch. Lost events are made up for by the next fetch.
 */

import type { Connection, Id } from "./api";
import type { Encryption } from "./encryption/encryption";
import { GroupMaintenance } from "./encryption/maintenance";
import { UPLOAD_COUNT } from "./encryption/packages";
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

/** A stream that lasted for 5 seconds resets the delay before the next attempt. */
const STABLE_MS = 5_000;
/** Expired messages are erased within a quarter of a second. */
const TICK_MS = 250;
/** The minimum time between two requests for the server's time. */
const TIME_REQUEST_MS = 1_000;

const TIME_UNKNOWN = "The server's clock is in doubt. New messages are shown once its operator has accepted the clock.";

/** Callbacks of a Sync. */
export interface SyncObserver {
  /** The connection has changed, or there is news. */
  onChange(): void;
  /** It is connected, and everything was fetched. */
  onReady(): void;
  onSessionEnd(): void;
  /** The storage has failed; null: it works again. */
  onStorageError(error: Error | null): void;
}

export class Sync {
  connection: Connection = { state: "connecting", why: "", retryAt: 0 };
  readonly maintenance: GroupMaintenance;
  private readonly repeating: Repeating;
  private readonly stop = new AbortController();
  private wakeUp: () => void = () => undefined;
  private isAwake = false;
  private readonly toFetch = new Set<Id>();
  private readonly toRefresh = new Set<Id>();
  private retry = new AbortController();
  private hasUploaded = false;
  private usedPackages = 0;
  private ticker: ReturnType<typeof setInterval> | undefined;
  private isErasing = false;
  private hasFailed = false;
  /** The last request for the server's time, by `performance.now()`. */
  private timeRequestedAt = -Infinity;
  private running: Promise<void> = Promise.resolve();

  constructor(
    private readonly server: Server,
    private readonly history: History,
    private readonly keys: Encryption,
    private readonly mirror: Mirror,
    private readonly clock: ServerClock,
    private readonly observer: SyncObserver,
  ) {
    this.maintenance = new GroupMaintenance(keys, server);
    this.repeating = new Repeating(server, history, keys, clock, (groupId) => this.fetchSoon(groupId));
  }

  /** The connection to show. */
  get shownConnection(): Connection {
    const isStalled = this.connection.state === "online" && this.clock.isTimeUnknown;
    return isStalled ? { ...this.connection, why: TIME_UNKNOWN } : this.connection;
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

  /** Connects now if it is not connected. */
  reconnect(): void {
    this.retry.abort();
    this.wake();
  }

  /** Schedules a fetch of a group: the server sends no events for the user's own changes. */
  fetchSoon(groupId: Id): void {
    this.toFetch.add(groupId);
    this.wake();
  }

  /** Schedules reading a group's policy and the list of groups. */
  refresh(groupId: Id): void {
    this.toRefresh.add(groupId);
    this.wake();
  }

  wake(): void {
    this.isAwake = true;
    this.wakeUp();
  }

  /** Schedules an upload of key packages, after the keys have changed. */
  uploadKeys(): void {
    this.hasUploaded = false;
    this.wake();
  }

  private async run(): Promise<void> {
    for (let failures = 0; !this.stop.signal.aborted; ) {
      const startedAt = Date.now();
      let why = "the server closed the connection";
      try {
        this.setConnection({ state: "connecting", why: "", retryAt: 0 });
        await this.followEvents();
      } catch (error) {
        if (this.stop.signal.aborted) return;
        if (isSessionOver(error)) return this.observer.onSessionEnd();
        if (error instanceof StorageError) this.observer.onStorageError(error);
        why = error instanceof Error ? error.message : String(error);
      }
      failures = Date.now() - startedAt >= STABLE_MS ? 1 : failures + 1;
      const wait = delayAfter(failures);
      this.retry = new AbortController();
      this.setConnection({ state: "offline", why, retryAt: Date.now() + wait });
      await sleep(wait, this.retry.signal);
    }
  }

  private setConnection(connection: Connection): void {
    this.connection = connection;
    this.observer.onChange();
  }

  /** Processes the events of a stream until it ends. */
  private async followEvents(): Promise<void> {
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
    const hasEnded = (): boolean => {
      if (ended && "error" in ended) throw ended.error;
      return ended !== null;
    };
    try {
      await isOpen;
      if (hasEnded()) return;
      await this.uploadKeyPackages();
      await this.mirror.catchUp();
      this.setConnection({ state: "online", why: "", retryAt: 0 });
      this.observer.onReady();
      for (;;) {
        await this.doScheduledWork();
        const event = events.shift();
        if (event) await this.onEvent(event);
        else if (hasEnded()) return;
        else await this.waitForWork();
      }
    } finally {
      this.stop.signal.removeEventListener("abort", abort);
      end.abort();
      await reading;
    }
  }

  private async waitForWork(): Promise<void> {
    if (!this.isAwake) await new Promise<void>((resolve) => (this.wakeUp = resolve));
    this.isAwake = false;
  }

  /** Does all work that does not depend on an event. */
  private async doScheduledWork(): Promise<void> {
    while (this.toRefresh.size > 0) {
      const [groupId] = this.toRefresh as Iterable<Id> as [Id];
      this.toRefresh.delete(groupId);
      await this.mirror.readGroups();
      await this.mirror.refresh(groupId);
    }
    while (this.toFetch.size > 0) {
      // Removed before the fetch: a message that is sent during it may need another one.
      const groupId = [...this.toFetch][0]!;
      this.toFetch.delete(groupId);
      await this.mirror.fetch(groupId);
    }
    await this.mirror.reportReads();
    await this.uploadKeyPackages();
    if (this.maintenance.isDue) {
      const groups = await this.mirror.readGroups();
      for (const groupId of await this.maintenance.processDue(groups)) this.fetchSoon(groupId);
    }
    await this.repeating.send();
    if (this.needsTime) {
      this.timeRequestedAt = performance.now();
      await this.server.me(); // every response has the time
      if (this.clock.isKnown) await this.mirror.catchUp();
    }
    this.observer.onChange();
  }

  /** Uploads key packages: a full set at the start, then one for each that was used. */
  private async uploadKeyPackages(): Promise<void> {
    const isFull = !this.hasUploaded || this.keys.ownKeys.areDue;
    if (!isFull && this.usedPackages === 0) return;
    if (isFull) this.keys.recordListedKey((await this.server.me()).signing_key_fingerprint);
    const used = this.usedPackages;
    const made = await this.keys.ownKeys.make(isFull ? UPLOAD_COUNT : Math.min(used, 2 * UPLOAD_COUNT), isFull);
    if (made.replacesAll) await this.server.resetAccount(); // the private keys of those on the server are lost
    await this.server.uploadKeyPackages(made.regular, made.lastResort, made.fingerprint);
    this.hasUploaded = true;
    this.usedPackages -= used;
  }

  private async onEvent({ name, data }: ServerEvent): Promise<void> {
    const groupId = String(data.group_id ?? "");
    const number = Number(data.sequence_num ?? 0);
    switch (name) {
      case "lagged":
        return this.mirror.catchUp();
      case "new_message":
        if (number > this.history.group(groupId).fetchedUpTo) await this.mirror.fetch(groupId);
        return;
      case "group_deleted":
        return this.mirror.removeGroup(groupId);
      case "message_redacted":
        return this.mirror.onTakenBack(groupId, [number]);
      case "welcome":
        this.usedPackages += 1;
        await this.mirror.readGroups();
        await this.mirror.processWelcomes();
        return this.mirror.refresh(groupId);
      case "invite_received":
        this.usedPackages += 1;
        this.mirror.inviters.set(groupId, String(data.inviter_id ?? ""));
        return this.mirror.readInvites();
      case "invite_cancelled":
        return this.mirror.readInvites();
      case "invite_declined":
        return this.keys.agenda.schedule(groupId);
      case "member_removed":
        return this.onMemberRemoved(groupId, String(data.removed_user_id ?? ""));
      case "group_update":
      case "identity_reset":
        this.keys.agenda.schedule(groupId);
        await this.mirror.readGroups();
        return data.update_type === "commit" || name === "identity_reset" ? this.mirror.fetch(groupId) : this.mirror.refresh(groupId);
    }
  }

  private async onMemberRemoved(groupId: Id, userId: Id): Promise<void> {
    this.keys.agenda.schedule(groupId);
    await this.mirror.readGroups();
    if (userId === this.keys.userId) return this.mirror.refresh(groupId); // the user may have rejoined
    await this.mirror.eraseDeletedSenders(groupId, [userId]);
    await this.mirror.fetch(groupId);
  }

  /** Erases expired messages, also without a connection, and starts work that is due. */
  private async tick(): Promise<void> {
    if (this.isErasing) return;
    this.isErasing = true;
    try {
      for (const { groupId, numbers } of await this.history.eraseExpired()) {
        await this.keys.eraseMessages(groupId, numbers);
        this.observer.onChange();
      }
      if (this.hasFailed) this.observer.onStorageError(null);
      this.hasFailed = false;
    } catch (error) {
      this.hasFailed = true;
      this.observer.onStorageError(error as Error);
    } finally {
      this.isErasing = false;
    }
    if (this.maintenance.isDue || this.needsTime) this.wake();
  }

  /** Whether to request the server's time: a leap needs several responses to confirm, an unknown time only one. */
  private get needsTime(): boolean {
    return this.clock.needsAnswer && performance.now() - this.timeRequestedAt >= TIME_REQUEST_MS;
  }
}
