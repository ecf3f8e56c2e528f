/** Sends anew what was sent, and could not be read by everybody: by keys that had passed, or that others do not have. */

import type { Id } from "./api";
import { idOf, sha256, utf8 } from "./bytes";
import type { Encryption, SendAgain } from "./encryption/encryption";
import { NotReadyError, ReplacedError } from "./encryption/errors";
import type { History } from "./history";
import type { ServerClock } from "./server/clock";
import { isSessionOver, RefusedError } from "./server/errors";
import type { Server } from "./server/server";
import { delayAfter } from "./server/transport";

/** What the server has refused for good is tried again after ten minutes: it may have been told otherwise by then. */
const REFUSED_MS = 600_000;

export class Repeating {
  private failures = 0;
  private notBefore = 0;
  private readonly refused = new Map<string, number>();
  private readonly encoded = new Map<string, { epoch: number; payload: Uint8Array }>();

  constructor(
    private readonly server: Server,
    private readonly history: History,
    private readonly keys: Encryption,
    private readonly clock: ServerClock,
    private readonly lookAt: (groupId: Id) => void,
  ) {}

  /** Sends what can be sent now, takes back what is unwanted. Throws only what ends the connection. */
  async send(): Promise<void> {
    if (Date.now() < this.notBefore) return;
    for (const { groupId, number } of this.keys.toTakeBack()) {
      if (!(await this.takeBack(groupId, number))) return this.fails();
    }
    for (const again of this.keys.toSendAgain()) {
      if (this.isLate(again)) {
        if (this.clock.isKnown) await this.keys.sentAgain(again.groupId, again.key); // otherwise it may come back
      } else if (Date.now() >= (this.refused.get(nameOf(again)) ?? 0) && !(await this.sendOne(again))) return this.fails();
    }
    this.failures = this.notBefore = 0;
  }

  private fails(): void {
    this.failures += 1;
    this.notBefore = Date.now() + delayAfter(this.failures);
  }

  /** Takes a message back whose first one was, while it was under way. False: the server cannot now. */
  private async takeBack(groupId: Id, number: number): Promise<boolean> {
    try {
      await this.server.takeBack(groupId, number);
    } catch (error) {
      if (!(error instanceof RefusedError) || isSessionOver(error)) throw error;
      if (!error.isFinal) return false;
    }
    await this.keys.takenBack(groupId, number); // or the user is no member any more, or it has gone
    return true;
  }

  /** Sends a text if it can be sent. False: the server cannot take any now. */
  private async sendOne(again: SendAgain): Promise<boolean> {
    const { groupId, key, original, selfDestructSeconds } = again;
    if (this.keys.isInDoubt(groupId)) return true; // it was meant for those who had the former key
    let payload: Uint8Array;
    let number: number;
    try {
      payload = await this.payload(again);
      number = await this.server.send(groupId, payload, await sendIdOf(again), selfDestructSeconds);
    } catch (error) {
      if (error instanceof NotReadyError || error instanceof ReplacedError) return true;
      if (!(error instanceof RefusedError) || isSessionOver(error)) throw error;
      if (!error.isFinal) return false; // it may be there all the same, and comes back
      const encoded = this.encoded.get(nameOf(again));
      if (encoded) await this.keys.withdraw(groupId, encoded.payload);
      this.encoded.delete(nameOf(again));
      this.refused.set(nameOf(again), Date.now() + REFUSED_MS);
      this.lookAt(groupId); // the user may not be in it any more
      return true;
    }
    this.encoded.delete(nameOf(again));
    const isWanted = this.keys.toSendAgain().some((each) => each.groupId === groupId && each.key === key);
    await this.keys.sentAgain(groupId, key);
    // It went meanwhile, and whoever took it back did not know of this one.
    if (!isWanted || !this.history.group(groupId).find(original)) await this.server.takeBack(groupId, number).catch(() => undefined);
    this.lookAt(groupId);
    return true;
  }

  /** The same payload for each try in an epoch: each is kept until it comes back, and uses up a key. */
  private async payload(again: SendAgain): Promise<Uint8Array> {
    const { epoch } = this.keys.sight(again.groupId);
    const former = this.encoded.get(nameOf(again));
    if (former?.epoch === epoch) return former.payload;
    const payload = await this.keys.encode(again.groupId, again.text, "", again.original);
    this.encoded.set(nameOf(again), { epoch, payload });
    return payload;
  }

  /** Whether it is gone, or has half its time behind it: sent anew, it has the whole of it once more. */
  private isLate({ groupId, original }: SendAgain): boolean {
    const group = this.history.group(groupId);
    const first = group.find(original);
    return !first || (group.expiry > 0 && first.createdAt + Math.floor(group.expiry / 2) < this.clock.now());
  }
}

const nameOf = ({ groupId, key }: SendAgain): string => `${groupId} ${key}`;

/** The same id for each try. */
async function sendIdOf({ groupId, original, key }: SendAgain): Promise<Id> {
  return idOf(await sha256(utf8(`${groupId} ${original} ${key}`)).then((digest) => digest.slice(0, 16)));
}

