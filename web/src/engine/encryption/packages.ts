/** The user's signature key and key packages, and their storage. */

import type { Id } from "../api";
import { loadKeyPackage, makeKeyPackage, published, storeKeyPackage, type OwnKeyPackage, type StoredKeyPackage } from "../mls/keys";
import { fingerprint, newSignatureKey, publicSignatureKey } from "../mls/suite";
import { Batch, type Vault } from "../store/vault";

/** Key packages per upload, besides one of last resort. The server keeps the 10 newest. */
export const UPLOAD_COUNT = 5;
/** Key packages are stored for 60 days, since an invite may wait that long. They are valid for 90. */
const KEEP_SECONDS = 60 * 86_400;
/** New key packages are uploaded after 30 days, so that those on the server stay valid. */
const RENEWAL_SECONDS = 30 * 86_400;
const MAX_STORED = 600;
/** Former signature keys that are recognized as own. */
const MAX_FORMER_KEYS = 8;

interface Identity {
  signKey: Uint8Array;
  /** When key packages were last uploaded; 0: never with this key. */
  uploadedAt: number;
  former: string[];
  lastKey: number;
}

/** Key packages to upload. `replacesAll`: those on the server have other keys. */
export interface Upload {
  regular: Uint8Array[];
  lastResort: Uint8Array | null;
  fingerprint: string;
  replacesAll: boolean;
}

export class OwnKeys {
  fingerprint = "";
  private readonly kept = new Map<number, StoredKeyPackage>();

  private constructor(
    private readonly vault: Vault,
    private readonly userId: Id,
    private readonly now: () => number,
    private identity: Identity,
  ) {}

  /** Reads the stored keys. Creates a signature key on first use. */
  static async open(vault: Vault, userId: Id, now: () => number): Promise<OwnKeys> {
    let identity = await vault.get<Identity>(["identity"]);
    if (!identity) {
      identity = { signKey: newSignatureKey(), uploadedAt: 0, former: [], lastKey: 0 };
      await vault.write(new Batch().put(["identity"], identity));
    }
    const made = new OwnKeys(vault, userId, now, identity);
    made.fingerprint = await fingerprint(publicSignatureKey(identity.signKey));
    const keys = vault.keys("package");
    const stored = await vault.getAll<StoredKeyPackage>(keys);
    keys.forEach((key, at) => made.kept.set(Number(key[1]), stored[at]!));
    return made;
  }

  /** Whether a signature key is or was one of this device. */
  async isOwn(signatureKey: Uint8Array): Promise<boolean> {
    return [this.fingerprint, ...this.identity.former].includes(await fingerprint(signatureKey));
  }

  /** Whether new key packages have to be uploaded before the old ones expire. */
  get areDue(): boolean {
    const age = this.now() - this.identity.uploadedAt;
    return age < 0 || age >= RENEWAL_SECONDS;
  }

  /** Creates key packages, and stores their private keys. */
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
    const old = [...this.kept].filter(([key, each]) => each.madeAt < now - KEEP_SECONDS || key <= identity.lastKey - MAX_STORED);
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

  /** Returns a key package that is not uploaded, to create a group or to join by an external commit. */
  ownLeaf(): Promise<OwnKeyPackage> {
    return makeKeyPackage(this.userId, this.identity.signKey, this.now());
  }

  /** Returns the key packages by which others may have added the user, newest first. */
  all(): OwnKeyPackage[] {
    return [...this.kept].sort(([one], [other]) => other - one).map(([, each]) => loadKeyPackage(each, this.identity.signKey));
  }

  /** Erases a used key package, except one of last resort. `at`: its index in `all()`. */
  dropUsed(at: number, batch: Batch): void {
    const [key, stored] = [...this.kept].sort(([one], [other]) => other - one)[at]!;
    if (stored.isLastResort) return;
    batch.delete(["package", key]);
    this.kept.delete(key);
  }

  /** Creates a new signature key, and erases all key packages. */
  async replaceKey(batch: Batch): Promise<void> {
    const former = [this.fingerprint, ...this.identity.former].slice(0, MAX_FORMER_KEYS);
    this.identity = { signKey: newSignatureKey(), uploadedAt: 0, former, lastKey: this.identity.lastKey };
    for (const key of this.kept.keys()) batch.delete(["package", key]);
    this.kept.clear();
    this.fingerprint = await fingerprint(publicSignatureKey(this.identity.signKey));
    batch.put(["identity"], this.identity);
  }
}
