/** Sends messages again that some members could not read: their keys had expired, or others do not have them. */

import type { Id } from "./api";
import { idOf, sha256, utf8 } from "./bytes";
import type { Encryption } from "./encryption/encryption";
import { NotReadyError, ReplacedError } from "./encryption/errors";
import type { PendingResend } from "./encryption/group-store";
import type { History } from "./history";
import type { ServerClock } from "./server/clock";
import { isSessionOver, RefusedError } from "./server/errors";
import type { Server } from "./server/server";
import { delayAfter } from "./server/transport";

/** A message that the server rejected is retried after ten minutes: membership may have changed. */
const REJECTED_RETRY_MS = 600_000;

export class Repeating {
  private failures = 0;
  private notBefore = 0;
  private readonly rejectedUntil = new Map<string, number>();
  private readonly encoded = new Map<string, { epoch: number; payload: Uint8Array }>();

  constructor(
    private readonly server: Server,
    private readonly history: History,
    private readonly keys: Encryption,
    private readonly clock: ServerClock,
    private readonly fetchSoon: (groupId: Id) => void,
  ) {}

  /** Sends pending repetitions, and takes back unwanted ones. Throws only errors that end the connection. */
  async send(): Promise<void> {
    if (Date.now() < this.notBefore) return;
    for (const { groupId, number } of this.keys.pendingTakeBacks()) {
      if (!(await this.takeBack(groupId, number))) return this.postpone();
    }
    for (const repetition of this.keys.pendingResends()) {
      if (this.isLate(repetition)) {
        if (this.clock.isKnown) await this.keys.dropResend(repetition.groupId, repetition.key); // otherwise it may reappear
      } else if (Date.now() >= (this.rejectedUntil.get(nameOf(repetition)) ?? 0) && !(await this.sendOne(repetition))) return this.postpone();
    }
    this.failures = this.notBefore = 0;
  }

  private postpone(): void {
    this.failures += 1;
    this.notBefore = Date.now() + delayAfter(this.failures);
  }

  /** Takes back a repetition whose original was taken back meanwhile. False: the server is not available. */
  private async takeBack(groupId: Id, number: number): Promise<boolean> {
    try {
      await this.server.takeBack(groupId, number);
    } catch (error) {
      if (!(error instanceof RefusedError) || isSessionOver(error)) throw error;
      if (!error.isFinal) return false;
    }
    await this.keys.recordTakenBack(groupId, number); // also if it is gone, or the user is not a member
    return true;
  }

  /** Sends one message if possible. False: the server is not available. */
  private async sendOne(repetition: PendingResend): Promise<boolean> {
    const { groupId, key, original, selfDestructSeconds } = repetition;
    if (this.keys.hasChangedKeys(groupId)) return true; // it was encrypted for the former key
    let payload: Uint8Array;
    let number: number;
    try {
      payload = await this.payload(repetition);
      number = await this.server.send(groupId, payload, await sendIdOf(repetition), selfDestructSeconds);
    } catch (error) {
      if (error instanceof NotReadyError || error instanceof ReplacedError) return true;
      if (!(error instanceof RefusedError) || isSessionOver(error)) throw error;
      if (!error.isFinal) return false; // the server may have stored it
      const encoded = this.encoded.get(nameOf(repetition));
      if (encoded) await this.keys.discardPayload(groupId, encoded.payload);
      this.encoded.delete(nameOf(repetition));
      this.rejectedUntil.set(nameOf(repetition), Date.now() + REJECTED_RETRY_MS);
      this.fetchSoon(groupId); // the user may not be a member any more
      return true;
    }
    this.encoded.delete(nameOf(repetition));
    const isWanted = this.keys.pendingResends().some((each) => each.groupId === groupId && each.key === key);
    await this.keys.dropResend(groupId, key);
    // The original was deleted meanwhile, by a member who did not know of this one.
    if (!isWanted || !this.history.group(groupId).find(original)) await this.server.takeBack(groupId, number).catch(() => undefined);
    this.fetchSoon(groupId);
    return true;
  }

  /** Returns the same payload for each attempt in an epoch, since each payload uses a key. */
  private async payload(repetition: PendingResend): Promise<Uint8Array> {
    const { epoch } = this.keys.status(repetition.groupId);
    const former = this.encoded.get(nameOf(repetition));
    if (former?.epoch === epoch) return former.payload;
    const payload = await this.keys.encode(repetition.groupId, repetition.text, "", repetition.original);
    this.encoded.set(nameOf(repetition), { epoch, payload });
    return payload;
  }

  /** Whether the original is gone or past half its lifetime: a repetition starts a whole lifetime. */
  private isLate({ groupId, original }: PendingResend): boolean {
    const group = this.history.group(groupId);
    const first = group.find(original);
    return !first || (group.expiry > 0 && first.createdAt + Math.floor(group.expiry / 2) < this.clock.now());
  }
}

const nameOf = ({ groupId, key }: PendingResend): string => `${groupId} ${key}`;

/** Returns the same id for each attempt. */
async function sendIdOf({ groupId, original, key }: PendingResend): Promise<Id> {
  return idOf(await sha256(utf8(`${groupId} ${original} ${key}`)).then((digest) => digest.slice(0, 16)));
}

