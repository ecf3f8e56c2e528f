/** Key packages, by which others can add this client while it is offline. */

import { decodeKeyPackage, encodeKeyPackage, generateKeyPackageWithKey, type KeyPackage, type PrivateKeyPackage } from "ts-mls/keyPackage.js";
import { ciphersuites, type CiphersuiteName } from "ts-mls/crypto/ciphersuite.js";
import type { Id } from "../api";
import { idBytes } from "../bytes";
import { LAST_RESORT } from "./checks";
import { publicSignatureKey, suite } from "./suite";
import { encode } from "./wire";

/** Own key packages are backdated, for clients whose clocks are behind. */
const BACKDATE_SECONDS = 3_600;
const LIFETIME_SECONDS = 90 * 86_400;

/** A key package with its private keys. */
export interface OwnKeyPackage {
  keyPackage: KeyPackage;
  privateKeys: PrivateKeyPackage;
  isLastResort: boolean;
}

const SUITES = (Object.keys(ciphersuites) as CiphersuiteName[]).filter((each) => ciphersuites[each] <= 7);

/** Creates a key package with new keys. `now`: Unix seconds. */
export async function makeKeyPackage(
  userId: Id,
  signKey: Uint8Array,
  now: number,
  isLastResort = false,
): Promise<OwnKeyPackage> {
  const { publicPackage, privatePackage } = await generateKeyPackageWithKey(
    { credentialType: "basic", identity: idBytes(userId) },
    {
      // The same as other clients, so that a leaf does not reveal the client program.
      versions: ["mls10"],
      ciphersuites: SUITES,
      extensions: isLastResort ? [LAST_RESORT] : [],
      proposals: [],
      credentials: ["basic"],
    },
    { notBefore: BigInt(Math.max(0, now - BACKDATE_SECONDS)), notAfter: BigInt(now + LIFETIME_SECONDS) },
    isLastResort ? [{ extensionType: LAST_RESORT, extensionData: new Uint8Array() }] : [],
    { signKey, publicKey: publicSignatureKey(signKey) },
    await suite(),
  );
  return { keyPackage: publicPackage, privateKeys: privatePackage, isLastResort };
}

/** Serializes a key package for the upload. */
export const published = ({ keyPackage }: OwnKeyPackage): Uint8Array =>
  encode({ version: "mls10", wireformat: "mls_key_package", keyPackage });

/** A key package in the storage. */
export interface StoredKeyPackage {
  keyPackage: Uint8Array;
  init: Uint8Array;
  hpke: Uint8Array;
  isLastResort: boolean;
  madeAt: number;
}

export const storeKeyPackage = ({ keyPackage, privateKeys, isLastResort }: OwnKeyPackage, madeAt: number): StoredKeyPackage => ({
  keyPackage: encodeKeyPackage(keyPackage),
  init: privateKeys.initPrivateKey,
  hpke: privateKeys.hpkePrivateKey,
  isLastResort,
  madeAt,
});

export function loadKeyPackage(stored: StoredKeyPackage, signaturePrivateKey: Uint8Array): OwnKeyPackage {
  const keyPackage = decodeKeyPackage(stored.keyPackage, 0)![0];
  const privateKeys = {
    initPrivateKey: stored.init,
    hpkePrivateKey: stored.hpke,
    signaturePrivateKey,
  };
  return { keyPackage, privateKeys, isLastResort: stored.isLastResort };
}
