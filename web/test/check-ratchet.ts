/** Checks the keys of skipped messages. Exits with an error on failure. */

import assert from "node:assert/strict";
import type { ReuseGuard } from "ts-mls/sender.js";
import { createSecretTree, ratchetToGeneration } from "ts-mls/secretTree.js";
import { CONFIG } from "../src/engine/mls/checks";
import { suite } from "../src/engine/mls/suite";

const cs = await suite();
const tree = await createSecretTree(1, new Uint8Array(cs.kdf.size).fill(7), cs.kdf);
const reuseGuard = Uint8Array.of(1, 2, 3, 4) as Uint8Array as ReuseGuard;
const take = (from: typeof tree, generation: number) =>
  ratchetToGeneration(from, { leafIndex: 0, generation, reuseGuard }, "application", CONFIG.keyRetentionConfig, cs);

const inOrder = await take(tree, 1);
const later = await take(tree, 3);
const kept = later.newTree[0]!.application.unusedGenerations;
assert.deepEqual(Object.keys(kept), ["0", "1", "2"]);
for (const each of Object.values(kept)) assert.equal(each.length, cs.hpke.keyLength + cs.hpke.nonceLength);

// A skipped message is read with the same key, once.
const late = await take(later.newTree, 1);
assert.deepEqual([late.key, late.nonce], [inOrder.key, inOrder.nonce]);
await assert.rejects(take(late.newTree, 1));
