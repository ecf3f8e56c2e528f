/** The queue of outgoing messages: sends each exactly once, in the order of its group, while there is a connection. */

import type { Id, Sending } from "./api";
import type { Encryption } from "./encryption/encryption";
import { NotReadyError, ReplacedError } from "./encryption/errors";
import { isNotMember, isSessionOver, RefusedError } from "./server/errors";
import type { Server } from "./server/server";
import { delayAfter, sleep } from "./server/transport";
import { Batch, type Vault } from "./store/vault";

/** Send ids can be repeated for so long: the server remembers them for a day. */
const MAX_RETRY_MS = 23 * 3_600_000;
/** How often to check whether a group has keys. */
const KEY_POLL_MS = 500;
const NO_RESPONSE = "no response for a day, so it may have been sent: check the conversation before you retry";

/**
 * An outgoing message. `triedAt`: `Date.now()` of the first attempt without a response; 0: none. `isCalledBack`: the user
 * has discarded it after an attempt: it is not sent again, and taken back if the server has it.
 */
interface QueuedMessage extends Sending {
  groupId: Id;
  order: number;
  triedAt: number;
  /** Its number, once the server has accepted it; 0: not yet. */
  number: number;
  isCalledBack: boolean;
}

export class SendQueue {
  private readonly items = new Map<Id, QueuedMessage[]>();
  private readonly draining = new Set<Id>();
  private lastOrder = 0;
  private isClosed = false;

  constructor(
    private readonly vault: Vault,
    private readonly server: Server,
    private readonly keys: Encryption,
    private readonly isOnline: () => boolean,
    private readonly fetchSoon: (groupId: Id) => void,
    private readonly onChange: () => void,
    private readonly onStorageError: (error: Error) => void,
    private readonly takeBack: (groupId: Id, number: number) => Promise<void>,
  ) {}

  /** Reads the stored queue. */
  async open(): Promise<void> {
    const found = await this.vault.getAll<QueuedMessage>(this.vault.keys("send"));
    for (const item of found.flatMap((each) => each ?? []).sort((one, other) => one.order - other.order)) {
      this.lastOrder = Math.max(this.lastOrder, item.order);
      this.of(item.groupId).push(item.state === "held" ? { ...item, state: "waiting" } : item);
    }
  }

  close(): void {
    this.isClosed = true;
  }

  /** Returns the outgoing messages of a group for the view. */
  shown(groupId: Id): Sending[] {
    const shown = this.of(groupId).filter((each) => !each.isCalledBack);
    return shown.map(({ sendId, text, selfDestructSeconds, state, why }) => ({ sendId, text, selfDestructSeconds, state, why }));
  }

  private of(groupId: Id): QueuedMessage[] {
    let found = this.items.get(groupId);
    if (!found) this.items.set(groupId, (found = []));
    return found;
  }

  /** Adds a message to the queue. It is stored, together with the batch, when this returns. */
  async send(groupId: Id, text: string, selfDestructSeconds: number, batch: Batch): Promise<void> {
    const sendId = crypto.randomUUID();
    const order = ++this.lastOrder;
    const item: QueuedMessage = { groupId, sendId, text, selfDestructSeconds, state: "waiting", why: "", order, triedAt: 0, number: 0, isCalledBack: false };
    await this.vault.write(this.put(item, batch));
    this.of(groupId).push(item);
    this.onChange();
    this.resume(groupId);
  }

  /** Retries messages that failed or are held back. */
  async retry(groupId: Id): Promise<void> {
    for (const item of this.of(groupId)) {
      if (item.state === "waiting" || item.isCalledBack) continue;
      if (item.triedAt > 0 && Date.now() - item.triedAt >= MAX_RETRY_MS) item.sendId = crypto.randomUUID();
      [item.state, item.why, item.triedAt] = ["waiting", "", 0];
      await this.save(item);
    }
    this.onChange();
    this.resume(groupId);
  }

  async discard(groupId: Id, sendId: Id): Promise<void> {
    const item = this.of(groupId).find((each) => each.sendId === sendId);
    if (!item) return;
    item.isCalledBack = item.triedAt > 0;
    const batch = new Batch();
    await this.vault.write(item.isCalledBack ? this.put(item, batch) : this.drop(item, batch));
    this.onChange();
    if (item.isCalledBack) this.fetchSoon(groupId); // the server may have it, and sends no event
    this.resume(groupId);
  }

  /** Removes an own message from the queue that was fetched. */
  onReceived(groupId: Id, sendId: Id, number: number, batch: Batch): void {
    const item = this.of(groupId).find((each) => each.sendId === sendId);
    if (!item) return;
    if (!item.isCalledBack) {
      this.drop(item, batch);
      return;
    }
    item.number = number;
    this.put(item, batch);
    setTimeout(() => this.resume(groupId)); // after the batch is written
  }

  /** Returns messages that the server has accepted and that were not fetched yet. */
  accepted(groupId: Id): Id[] {
    return this.of(groupId).flatMap((each) => (each.number > 0 && !each.isCalledBack ? [each.sendId] : []));
  }

  /** Drops accepted messages that expired or were taken back before they were fetched. */
  async dropExpired(groupId: Id, sendIds: readonly Id[]): Promise<void> {
    const expired = this.of(groupId).filter((each) => sendIds.includes(each.sendId));
    const batch = new Batch();
    for (const item of expired) {
      await this.keys.removeAttempts(groupId, item.sendId);
      this.drop(item, batch);
    }
    await this.vault.write(batch);
  }

  async forgetGroup(groupId: Id): Promise<void> {
    const batch = new Batch();
    for (const item of [...this.of(groupId)]) this.drop(item, batch);
    await this.vault.write(batch);
  }

  /** Continues sending: the connection or the keys have changed. */
  resumeAll(): void {
    for (const [groupId, items] of this.items) {
      if (items.some((each) => each.state === "held") && !this.keys.hasChangedKeys(groupId))
        for (const each of items) if (each.state === "held") each.state = "waiting";
      this.resume(groupId);
    }
  }

  private resume(groupId: Id): void {
    if (this.draining.has(groupId)) return;
    this.draining.add(groupId);
    void this.drain(groupId)
      .catch((error: Error) => this.isClosed || this.onStorageError(error))
      .finally(() => this.draining.delete(groupId));
  }

  private async drain(groupId: Id): Promise<void> {
    let failures = 0;
    for (;;) {
      if (!this.isOnline() || this.isClosed) return;
      await this.takeBackDiscarded(groupId);
      const item = this.of(groupId).find((each) => each.state === "waiting" && each.number === 0 && !each.isCalledBack);
      if (!item || this.isClosed) return;
      if (item.triedAt > 0 && Date.now() - item.triedAt >= MAX_RETRY_MS) {
        await this.fail(item, NO_RESPONSE);
        this.fetchSoon(groupId);
        continue;
      }
      if (this.keys.hasChangedKeys(groupId)) {
        for (const each of this.of(groupId)) if (each.state === "waiting") each.state = "held";
        return this.onChange();
      }
      failures = await this.attempt(item, failures);
      if (failures > 0) await sleep(delayAfter(failures));
    }
  }

  /** Tries once to send a message; returns the number of consecutive failures. */
  private async attempt(item: QueuedMessage, failures: number): Promise<number> {
    const { groupId, sendId } = item;
    let payload: Uint8Array | undefined;
    try {
      payload = await this.keys.encode(groupId, item.text, sendId);
      if (item.triedAt === 0) {
        item.triedAt = Date.now();
        await this.save(item);
      }
      if (item.isCalledBack || !this.of(groupId).includes(item)) {
        await this.keys.discardPayload(groupId, payload);
        return 0;
      }
      item.number = await this.server.send(groupId, payload, sendId, item.selfDestructSeconds);
      if (!this.of(groupId).includes(item)) await this.keys.removeAttempts(groupId, sendId); // fetched before the response
      this.fetchSoon(groupId);
      this.onChange();
      return 0;
    } catch (error) {
      if (isSessionOver(error)) return 1; // Sync reports it
      if (item.isCalledBack) this.fetchSoon(groupId); // the server may have it, and sends no event
      if (error instanceof NotReadyError) {
        await sleep(KEY_POLL_MS);
        return 0;
      }
      if (error instanceof ReplacedError) return this.fail(item, error.message);
      if (!(error instanceof RefusedError) || !error.isFinal) return failures + 1;
      if (payload) await this.keys.discardPayload(groupId, payload);
      if (item.isCalledBack) await this.vault.write(this.drop(item, new Batch()));
      if (isNotMember(error)) this.fetchSoon(groupId);
      return this.fail(item, error.message);
    }
  }

  /** Takes back discarded messages that the server has, and drops those that it cannot have. */
  private async takeBackDiscarded(groupId: Id): Promise<void> {
    for (const item of this.of(groupId).filter((each) => each.isCalledBack)) {
      if (item.number > 0) {
        try {
          await this.takeBack(groupId, item.number);
        } catch (error) {
          if (!(error instanceof RefusedError) || isSessionOver(error) || !error.isFinal) continue; // retried with the next connection
        }
        await this.keys.removeAttempts(groupId, item.sendId);
      } else if (Date.now() - item.triedAt < MAX_RETRY_MS) continue;
      await this.vault.write(this.drop(item, new Batch()));
    }
  }

  private async fail(item: QueuedMessage, why: string): Promise<0> {
    item.state = "failed";
    item.why = why;
    await this.save(item);
    this.onChange();
    return 0;
  }

  private drop(item: QueuedMessage, batch: Batch): Batch {
    this.items.set(item.groupId, this.of(item.groupId).filter((each) => each !== item));
    return batch.delete(["send", item.groupId, item.order]);
  }

  private async save(item: QueuedMessage): Promise<void> {
    if (this.of(item.groupId).includes(item)) await this.vault.write(this.put(item, new Batch()));
  }

  private put(item: QueuedMessage, batch: Batch): Batch {
    return batch.put(["send", item.groupId, item.order], { ...item, number: item.isCalledBack ? item.number : 0 });
  }
}
