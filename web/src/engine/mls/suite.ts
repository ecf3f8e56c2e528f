/** The cipher suite of all clients: 0x0006, X448, ChaCha20-Poly1305, SHA-512, Ed448. */

import { Chacha20Poly1305 } from "@hpke/chacha20poly1305";
import { CipherSuite, HkdfSha512 } from "@hpke/core";
import { DhkemX448HkdfSha512 } from "@hpke/dhkem-x448";
import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { ed448, x448 } from "@noble/curves/ed448.js";
import type { CiphersuiteImpl, CiphersuiteName } from "ts-mls/crypto/ciphersuite.js";
import { makeHashImpl } from "ts-mls/crypto/implementation/default/makeHashImpl.js";
import { makeKdfImpl } from "ts-mls/crypto/implementation/default/makeKdfImpl.js";
import { makeGenericHpke } from "ts-mls/crypto/implementation/hpke.js";
import { hex, random, sha256 } from "../bytes";

export const SUITE_NAME: CiphersuiteName = "MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448";
export const KEM_BYTES = 56;
export const SIGNATURE_KEY_BYTES = 57;
export const HASH_BYTES = 64;

const aead = {
  encrypt: async (key: Uint8Array, nonce: Uint8Array, aad: Uint8Array, plaintext: Uint8Array) =>
    chacha20poly1305(key, nonce, aad).encrypt(plaintext),
  decrypt: async (key: Uint8Array, nonce: Uint8Array, aad: Uint8Array, ciphertext: Uint8Array) =>
    chacha20poly1305(key, nonce, aad).decrypt(ciphertext),
};

async function createSuite(): Promise<CiphersuiteImpl> {
  const kdf = new HkdfSha512();
  const cipherSuite = new CipherSuite({ kem: new DhkemX448HkdfSha512(), kdf, aead: new Chacha20Poly1305() });
  const algorithms = { kem: "DHKEM-X448-HKDF-SHA512", kdf: "HKDF-SHA512", aead: "CHACHA20POLY1305" } as const;
  const generic = await makeGenericHpke(algorithms, aead, cipherSuite);
  return {
    name: SUITE_NAME,
    hash: makeHashImpl(crypto.subtle, "SHA-512"),
    kdf: makeKdfImpl(kdf),
    rng: { randomBytes: random },
    hpke: {
      ...generic,
      // ts-mls passes the key of the extension `external_pub` with its length byte.
      importPublicKey: (key) => generic.importPublicKey(key.length === KEM_BYTES + 1 ? key.subarray(1) : key),
    },
    signature: {
      sign: async (key, message) => ed448.sign(message, key),
      verify: async (key, message, signature) => {
        try {
          return ed448.verify(signature, message, key);
        } catch {
          return false; // not a point of the curve
        }
      },
      keygen: async () => {
        const signKey = ed448.utils.randomSecretKey();
        return { signKey, publicKey: ed448.getPublicKey(signKey) };
      },
    },
  };
}

let cached: Promise<CiphersuiteImpl> | undefined;

export const suite = (): Promise<CiphersuiteImpl> => (cached ??= createSuite());

export const newSignatureKey = (): Uint8Array => ed448.utils.randomSecretKey();

export const publicSignatureKey = (key: Uint8Array): Uint8Array => ed448.getPublicKey(key);

/** Returns the SHA-256 of a public signature key: 64 hexadecimal digits, the same in all clients. */
export const fingerprint = async (publicKey: Uint8Array): Promise<string> => hex(await sha256(publicKey));

/** Returns the public key of a private one. */
export const publicKemKey = (key: Uint8Array): Uint8Array => x448.getPublicKey(key);

const PRIME = (1n << 448n) - (1n << 224n) - 1n;

/** Whether an X448 key has the right length and is not a point of small order. */
export function isGoodKemKey(key: Uint8Array): boolean {
  if (key.length !== KEM_BYTES) return false;
  const value = BigInt(`0x${hex(key.slice().reverse())}`) % PRIME;
  return value !== 0n && value !== 1n && value !== PRIME - 1n;
}
