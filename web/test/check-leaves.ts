/** Leaves that tell of what is not known here: a program that ends with an error if something is wrong. */

import assert from "node:assert/strict";
import { decodeCapabilities, encodeCapabilities } from "ts-mls/capabilities.js";

// Versions 1 and 0x0a0a, suite 6, no extension, no proposal, basic credentials.
const bytes = Uint8Array.of(4, 0, 1, 10, 10, 2, 0, 6, 0, 0, 2, 0, 1);
const found = decodeCapabilities(bytes, 0)?.[0];
assert.ok(found);
assert.deepEqual(found.versions, ["mls10", "2570"]);
assert.deepEqual(encodeCapabilities(found), bytes);
