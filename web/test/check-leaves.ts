/** Checks leaves and group infos with unknown values. Exits with an error on failure. */

import assert from "node:assert/strict";
import { epochOfInfo } from "../src/engine/mls/wire";
import { decodeCapabilities, encodeCapabilities } from "ts-mls/capabilities.js";

// Versions 1 and 0x0a0a, suite 6, no extension, no proposal, basic credentials.
const bytes = Uint8Array.of(4, 0, 1, 10, 10, 2, 0, 6, 0, 0, 2, 0, 1);
const found = decodeCapabilities(bytes, 0)?.[0];
assert.ok(found);
assert.deepEqual(found.versions, ["mls10", "2570"]);
assert.deepEqual(encodeCapabilities(found), bytes);

// A group info of epoch 5 with an id of 16 bytes. The rest is ignored.
const info = new Uint8Array(40);
info.set([0, 1, 0, 4, 0, 1, 0, 6, 16]);
info[32] = 5;
assert.equal(epochOfInfo(info), 5);
assert.equal(epochOfInfo(info.subarray(0, 32)), null);
assert.equal(epochOfInfo(Uint8Array.of(0, 1, 0, 3)), null);
