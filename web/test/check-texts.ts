/** Checks texts, names and policies, which must match the terminal chat. Exits with an error on failure. */

import assert from "node:assert/strict";
import { nameFor } from "../src/engine/names";
import { paddingFor } from "../src/engine/mls/group";
import { effectiveExpiry } from "../src/engine/policy";
import { truncate } from "../src/page/text";
import { mentions, repliesTo, withReplyTo } from "../src/engine/texts";

assert.equal(withReplyTo("bob", "hello\n  you", "yes"), "> bob: hello you\nyes");
assert.equal(withReplyTo("bob", "a".repeat(200), "yes"), `> bob: ${"a".repeat(159)}…\nyes`);
assert.equal(repliesTo("> bob: hello\nyes"), "bob");
assert.equal(repliesTo("yes\n> bob: hello"), null);

assert.ok(mentions("hello @Alice, look", "alice", ["bob"]));
assert.ok(!mentions("hello @Alice, look", "alice", ["Alice"]));
assert.ok(!mentions("mail me@alice or x.@alice", "alice", []));
assert.ok(!mentions("> bob: ask @alice\nno", "alice", ["bob"]));
assert.ok(mentions("> alice: so\nno", "alice", ["bob"]));
// A regular expression that tries each line end would take minutes.
const empty = `x${"\n".repeat(700_000)}y`;
assert.ok(!mentions(empty, "alice", []));
assert.equal(truncate(`\n${empty}`).shown[0], "x");
assert.deepEqual(truncate("\r\n a\n\n"), { shown: " a", omitted: 0 });

assert.equal(nameFor("Smith v. Jones, 2026"), "Smith_v_Jones_2026");
assert.equal(nameFor("Größe"), "Grosse");
assert.equal(nameFor("日本"), "");

for (const [length, padded] of [
  [0, 32],
  [31, 32],
  [32, 64],
  [255, 256],
  [300, 320],
  [1_000, 1_024],
  [1_024, 1_280],
] as const)
  assert.equal(length + paddingFor(length), padded, String(length));

const nothing = { policies: {}, limits: {} };
assert.equal(effectiveExpiry("g", 60, -1, nothing), 60);
assert.equal(effectiveExpiry("g", 60, 30, nothing), 30);
assert.equal(effectiveExpiry("g", 60, 0, nothing), 0);
assert.equal(effectiveExpiry("g", -1, -1, nothing), -1);
assert.equal(effectiveExpiry("g", 60, -1, { policies: { g: { max_lifetime: 5_000 } }, limits: {} }), 5);
assert.equal(effectiveExpiry("g", 5, -1, { policies: {}, limits: { max_lifetime: { min: 10_000 } } }), 10);
