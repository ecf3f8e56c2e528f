/** Texts, names and policies as the terminal chat has them: a program that ends with an error if something is wrong. */

import assert from "node:assert/strict";
import { nameFor } from "../src/engine/names";
import { paddingFor } from "../src/engine/mls/group";
import { effective } from "../src/engine/policy";
import { cut } from "../src/page/text";
import { answers, means, quotesIn, replyTo } from "../src/engine/texts";

assert.equal(replyTo("bob", "hello\n  you", "yes"), "> bob: hello you\nyes");
assert.equal(replyTo("bob", "a".repeat(200), "yes"), `> bob: ${"a".repeat(159)}…\nyes`);
assert.equal(answers("> bob: hello\nyes"), "bob");
assert.equal(answers("yes\n> bob: hello"), null);
assert.deepEqual(quotesIn("> a\nb"), [[0, 3]]);

assert.ok(means("hello @Alice, look", "alice", ["bob"]));
assert.ok(!means("hello @Alice, look", "alice", ["Alice"]));
assert.ok(!means("mail me@alice or x.@alice", "alice", []));
assert.ok(!means("> bob: ask @alice\nno", "alice", ["bob"]));
assert.ok(means("> alice: so\nno", "alice", ["bob"]));
// A text that an expression would take minutes for, if it tried the end of each line.
const empty = `x${"\n".repeat(700_000)}y`;
assert.ok(!means(empty, "alice", []));
assert.equal(cut(`\n${empty}`).shown[0], "x");
assert.deepEqual(cut("\r\n a\n\n"), { shown: " a", left: 0 });

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
assert.equal(effective("g", 60, -1, nothing), 60);
assert.equal(effective("g", 60, 30, nothing), 30);
assert.equal(effective("g", 60, 0, nothing), 0);
assert.equal(effective("g", -1, -1, nothing), -1);
assert.equal(effective("g", 60, -1, { policies: { g: { max_lifetime: 5_000 } }, limits: {} }), 5);
assert.equal(effective("g", 5, -1, { policies: {}, limits: { max_lifetime: { min: 10_000 } } }), 10);
