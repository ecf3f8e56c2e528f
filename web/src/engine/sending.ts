/** Sends what was typed: in each group in its order, each text once, as soon as there is a connection. */

import type { Id, Sending } from "./api";
import type { Encryption } from "./encryption/encryption";
import { NotReadyError, ReplacedError } from "./encryption/errors";
import { isNotMember, isSessionOver, RefusedError } from "./server/errors";
import type { Server } from "./server/server";
import { delayAfter, sleep } from "./server/transport";
import { Batch, type Vault } from "./store/vault";

/** A text whose first try is older is not sent again: the server knows a send for a day. */
const REPEATED_MS = 23 * 3_600_000;
/** Where the keys of a group are not there yet, it is looked for them each half second. */
const KEYS_LOOKED_EVERY_MS = 500;
const UNKNOWN = "it is not known whether it was sent, since no answer came for a day: see whether it is here";

/**
 * A text on its way. `triedAt`: `Date.now()` of the first try whose answer is lost; 0: none was. `isCalledBack`: the user has
 * dropped it, the server may have it: it is not sent any more, and taken back if it comes.
 */
interface Item extends Sending {
  groupId: Id;
  order: number;
  triedAt: number;
  /** The server has it, under this number; 0: not yet. */
  number: number;
  isCalledBack: boolean;
}

export class SendQueue {
  private readonly items = new Map<Id, Item[]>();
  private readonly draining = new Set<Id>();
  private lastOrder = 0;
  private isClosed = false;

  constructor(
    private readonly vault: Vault,
    private readonly server: Server,
    private readonly keys: Encryption,
    private readonly isOnline: () => boolean,
    private readonly lookAt: (groupId: Id) => void,
    private readonly changed: () => void,
    private readonly failed: (error: Error) => void,
    private readonly takeBack: (groupId: Id, number: number) => Promise<void>,
  ) {}

  /** Reads what was left when the page was closed. */
  async open(): Promise<void> {
    const found = await this.vault.getAll<Item>(this.vault.keys("send"));
    for (const item of found.flatMap((each) => each ?? []).sort((one, other) => one.order - other.order)) {
      this.lastOrder = Math.max(this.lastOrder, item.order);
      this.of(item.groupId).push(item.state === "held" ? { ...item, state: "waiting" } : item);
    }
  }

  close(): void {
    this.isClosed = true;
  }

  /** What people see of a group. */
  shown(groupId: Id): Sending[] {
    const shown = this.of(groupId).filter((each) => !each.isCalledBack);
    return shown.map(({ sendId, text, selfDestructSeconds, state, why }) => ({ sendId, text, selfDestructSeconds, state, why }));
  }

  private of(groupId: Id): Item[] {
    let found = this.items.get(groupId);
    if (!found) this.items.set(groupId, (found = []));
    return found;
  }

  /** Sends a text as soon as that is possible. It is stored when this returns, with what else is in the batch. */
  async send(groupId: Id, text: string, selfDestructSeconds: number, batch: Batch): Promise<void> {
    const sendId = crypto.randomUUID();
    const order = ++this.lastOrder;
    const item: Item = { groupId, sendId, text, selfDestructSeconds, state: "waiting", why: "", order, triedAt: 0, number: 0, isCalledBack: false };
    await this.vault.write(this.put(item, batch));
    this.of(groupId).push(item);
    this.changed();
    this.goOn(groupId);
  }

  /** Tries again what the server has refused, or what waits for a key. */
  async retry(groupId: Id): Promise<void> {
    for (const item of this.of(groupId)) {
      if (item.state === "waiting" || item.isCalledBack) continue;
      if (item.triedAt > 0 && Date.now() - item.triedAt >= REPEATED_MS) item.sendId = crypto.randomUUID();
      [item.state, item.why, item.triedAt] = ["waiting", "", 0];
      await this.keep(item);
    }
    this.changed();
    this.goOn(groupId);
  }

  async discard(groupId: Id, sendId: Id): Promise<void> {
    const item = this.of(groupId).find((each) => each.sendId === sendId);
    if (!item) return;
    item.isCalledBack = item.triedAt > 0;
    const batch = new Batch();
    await this.vault.write(item.isCalledBack ? this.put(item, batch) : this.drop(item, batch));
    this.changed();
    if (item.isCalledBack) this.lookAt(groupId); // it may be there: no event tells
    this.goOn(groupId);
  }

  /** An own text is here as a message. */
  arrived(groupId: Id, sendId: Id, number: number, batch: Batch): void {
    const item = this.of(groupId).find((each) => each.sendId === sendId);
    if (!item) return;
    if (!item.isCalledBack) {
      this.drop(item, batch);
      return;
    }
    item.number = number;
    this.put(item, batch);
    setTimeout(() => this.goOn(groupId)); // once it is stored
  }

  /** The texts that the server has, and that have not come. */
  answered(groupId: Id): Id[] {
    return this.of(groupId).flatMap((each) => (each.number > 0 && !each.isCalledBack ? [each.sendId] : []));
  }

  /** Drops texts that the server has had, and does not have any more: they have expired, or were taken back. */
  async areGone(groupId: Id, sendIds: readonly Id[]): Promise<void> {
    const gone = this.of(groupId).filter((each) => sendIds.includes(each.sendId));
    const batch = new Batch();
    for (const item of gone) {
      await this.keys.hasCome(groupId, item.sendId);
      this.drop(item, batch);
    }
    await this.vault.write(batch);
  }

  async forgetGroup(groupId: Id): Promise<void> {
    const batch = new Batch();
    for (const item of [...this.of(groupId)]) this.drop(item, batch);
    await this.vault.write(batch);
  }

  /** Goes on where something waits: there is a connection, or other keys. */
  goOnAll(): void {
    for (const [groupId, items] of this.items) {
      if (items.some((each) => each.state === "held") && !this.keys.isInDoubt(groupId))
        for (const each of items) if (each.state === "held") each.state = "waiting";
      this.goOn(groupId);
    }
  }

  private goOn(groupId: Id): void {
    if (this.draining.has(groupId)) return;
    this.draining.add(groupId);
    void this.drain(groupId)
      .catch((error: Error) => this.isClosed || this.failed(error))
      .finally(() => this.draining.delete(groupId));
  }

  private async drain(groupId: Id): Promise<void> {
    let failures = 0;
    for (;;) {
      if (!this.isOnline() || this.isClosed) return;
      await this.takeAllBack(groupId);
      const item = this.of(groupId).find((each) => each.state === "waiting" && each.number === 0 && !each.isCalledBack);
      if (!item || this.isClosed) return;
      if (item.triedAt > 0 && Date.now() - item.triedAt >= REPEATED_MS) {
        await this.refuse(item, UNKNOWN);
        this.lookAt(groupId);
        continue;
      }
      if (this.keys.isInDoubt(groupId)) {
        for (const each of this.of(groupId)) if (each.state === "waiting") each.state = "held";
        return this.changed();
      }
      failures = await this.attempt(item, failures);
      if (failures > 0) await sleep(delayAfter(failures));
    }
  }

  /** Tries once to send a text; returns how many tries have failed in a row. */
  private async attempt(item: Item, failures: number): Promise<number> {
    const { groupId, sendId } = item;
    let payload: Uint8Array | undefined;
    try {
      payload = await this.keys.encode(groupId, item.text, sendId);
      if (item.triedAt === 0) {
        item.triedAt = Date.now();
        await this.keep(item);
      }
      if (item.isCalledBack || !this.of(groupId).includes(item)) {
        await this.keys.withdraw(groupId, payload);
        return 0;
      }
      item.number = await this.server.send(groupId, payload, sendId, item.selfDestructSeconds);
      if (!this.of(groupId).includes(item)) await this.keys.hasCome(groupId, sendId); // it came before the answer
      this.lookAt(groupId);
      this.changed();
      return 0;
    } catch (error) {
      if (isSessionOver(error)) return 1; // the sync says so
      if (item.isCalledBack) this.lookAt(groupId); // no event tells whether it is there
      if (error instanceof NotReadyError) {
        await sleep(KEYS_LOOKED_EVERY_MS);
        return 0;
      }
      if (error instanceof ReplacedError) return this.refuse(item, error.message);
      if (!(error instanceof RefusedError) || !error.isFinal) return failures + 1;
      if (payload) await this.keys.withdraw(groupId, payload);
      if (item.isCalledBack) await this.vault.write(this.drop(item, new Batch()));
      if (isNotMember(error)) this.lookAt(groupId);
      return this.refuse(item, error.message);
    }
  }

  /** Takes back what was called back, and has come; forgets what will not come any more. */
  private async takeAllBack(groupId: Id): Promise<void> {
    for (const item of this.of(groupId).filter((each) => each.isCalledBack)) {
      if (item.number > 0) {
        try {
          await this.takeBack(groupId, item.number);
        } catch (error) {
          if (!(error instanceof RefusedError) || isSessionOver(error) || !error.isFinal) continue; // with the next connection
        }
        await this.keys.hasCome(groupId, item.sendId);
      } else if (Date.now() - item.triedAt < REPEATED_MS) continue;
      await this.vault.write(this.drop(item, new Batch()));
    }
  }

  private async refuse(item: Item, why: string): Promise<0> {
    item.state = "failed";
    item.why = why;
    await this.keep(item);
    this.changed();
    return 0;
  }

  private drop(item: Item, batch: Batch): Batch {
    this.items.set(item.groupId, this.of(item.groupId).filter((each) => each !== item));
    return batch.delete(["send", item.groupId, item.order]);
  }

  private async keep(item: Item): Promise<void> {
    if (this.of(item.groupId).includes(item)) await this.vault.write(this.put(item, new Batch()));
  }

  private put(item: Item, batch: Batch): Batch {
    return batch.put(["send", item.groupId, item.order], { ...item, number: item.isCalledBack ? item.number : 0 });
  }
}
