/** The user's own signature key and key packages: made, kept until they can be of no use any more, and erased. */

import type { Id } from "../api";
import { loadKeyPackage, makeKeyPackage, published, storeKeyPackage, type OwnKeyPackage, type StoredKeyPackage } from "../mls/keys";
import { fingerprint, newSignatureKey, publicSignatureKey } from "../mls/suite";
import { Batch, type Vault } from "../store/vault";

/** So many are uploaded at once, beside one of last resort. The server keeps the 10 newest. */
export const REGULAR = 5;
/** Key packages are kept for 60 days: an invite may wait that long with one. They can be used for 90. */
const KEPT_SECONDS = 60 * 86_400;
/** After 30 days new ones are uploaded, so that those at the server are never too old to be used. */
const RENEWED_SECONDS = 30 * 86_400;
const MOST = 600;
/** So many own keys of before are known again. */
const MOST_FORMER = 8;

interface Identity {
  signKey: Uint8Array;
  /** When key packages were uploaded last; 0: never with this key. */
  uploadedAt: number;
  former: string[];
  lastKey: number;
}

/** What is uploaded. `replacesAll`: those at the server were made with keys that are not here. */
export interface Upload {
  regular: Uint8Array[];
  lastResort: Uint8Array | null;
  fingerprint: string;
  replacesAll: boolean;
}

export class Packages {
  fingerprint = "";
  private readonly kept = new Map<number, StoredKeyPackage>();

  private constructor(
    private readonly vault: Vault,
    private readonly userId: Id,
    private readonly now: () => number,
    private identity: Identity,
  ) {}

  /** Opens what is kept. There is a signature key from the first use on. */
  static async open(vault: Vault, userId: Id, now: () => number): Promise<Packages> {
    let identity = await vault.get<Identity>(["identity"]);
    if (!identity) {
      identity = { signKey: newSignatureKey(), uploadedAt: 0, former: [], lastKey: 0 };
      await vault.write(new Batch().put(["identity"], identity));
    }
    const made = new Packages(vault, userId, now, identity);
    made.fingerprint = await fingerprint(publicSignatureKey(identity.signKey));
    const keys = vault.keys("package");
    const stored = await vault.getAll<StoredKeyPackage>(keys);
    keys.forEach((key, at) => made.kept.set(Number(key[1]), stored[at]!));
    return made;
  }

  /** Whether a key is one of this device's, now or before: it is of no other device then. */
  async made(signatureKey: Uint8Array): Promise<boolean> {
    return [this.fingerprint, ...this.identity.former].includes(await fingerprint(signatureKey));
  }

  /** Whether new ones have to be uploaded before the old ones end. */
  get areDue(): boolean {
    const age = this.now() - this.identity.uploadedAt;
    return age < 0 || age >= RENEWED_SECONDS;
  }

  /** Makes key packages; their private keys are stored when it returns. */
  async make(regular: number, withLastResort: boolean): Promise<Upload> {
    const now = this.now();
    const replacesAll = this.identity.uploadedAt === 0;
    const batch = new Batch();
    const made: OwnKeyPackage[] = [];
    for (let count = 0; count < regular + Number(withLastResort); count++) {
      made.push(await makeKeyPackage(this.userId, this.identity.signKey, now, count === regular));
    }
    const identity = { ...this.identity, uploadedAt: withLastResort ? now : this.identity.uploadedAt };
    const fresh = made.map((own): [number, StoredKeyPackage] => [++identity.lastKey, storeKeyPackage(own, now)]);
    const old = [...this.kept].filter(([key, each]) => each.madeAt < now - KEPT_SECONDS || key <= identity.lastKey - MOST);
    for (const [key] of old) batch.delete(["package", key]);
    for (const [key, each] of fresh) batch.put(["package", key], each);
    await this.vault.write(batch.put(["identity"], identity));
    this.identity = identity;
    for (const [key] of old) this.kept.delete(key);
    for (const [key, each] of fresh) this.kept.set(key, each);
    return {
      regular: made.slice(0, regular).map(published),
      lastResort: withLastResort ? published(made[regular]!) : null,
      fingerprint: this.fingerprint,
      replacesAll,
    };
  }

  /** A key package that is not uploaded: to begin a group with, or to come in by an external commit. */
  ownLeaf(): Promise<OwnKeyPackage> {
    return makeKeyPackage(this.userId, this.identity.signKey, this.now());
  }

  /** Those by which others may have added the user, the newest first. */
  all(): OwnKeyPackage[] {
    return [...this.kept].sort(([one], [other]) => other - one).map(([, each]) => loadKeyPackage(each, this.identity.signKey));
  }

  /** One was used: erases it, unless it is one of last resort. `at`: its place in `all()`. */
  used(at: number, batch: Batch): void {
    const [key, stored] = [...this.kept].sort(([one], [other]) => other - one)[at]!;
    if (stored.isLastResort) return;
    batch.delete(["package", key]);
    this.kept.delete(key);
  }

  /** Makes a new signature key; what was made with the old one is erased. */
  async replaceKey(batch: Batch): Promise<void> {
    const former = [this.fingerprint, ...this.identity.former].slice(0, MOST_FORMER);
    this.identity = { signKey: newSignatureKey(), uploadedAt: 0, former, lastKey: this.identity.lastKey };
    for (const key of this.kept.keys()) batch.delete(["package", key]);
    this.kept.clear();
    this.fingerprint = await fingerprint(publicSignatureKey(this.identity.signKey));
    batch.put(["identity"], this.identity);
  }
}
