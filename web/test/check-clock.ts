/** The server's time as the browser tells it: a program that ends with an error if something is wrong. */

import assert from "node:assert/strict";
import { ServerClock, type Reading } from "../src/engine/server/clock";

const machine: Reading = { wall: 1_000_000, steady: 50, start: "one" };
const read = (): Reading => ({ ...machine });

function passes(seconds: number): void {
  machine.wall += seconds;
  machine.steady += seconds;
}

const about = (one: number, other: number): void => assert.ok(Math.abs(one - other) <= 2, `${one} is not about ${other}`);

// The server is an hour ahead of this machine: that counts.
const clock = new ServerClock(null, read);
clock.hear(1_003_600);
about(clock.now(), 1_003_600);
passes(100);
about(clock.now(), 1_003_700);
about(clock.sure(), 1_003_700);

// The wall clock is set forward: by it things are hidden, and not erased.
machine.wall += 5_000;
about(clock.now(), 1_008_700);
about(clock.sure(), 1_003_700);
machine.wall -= 5_000;

// The server leaps: by that things are hidden, and erased only once ten answers have told it.
clock.hear(2_000_000);
assert.ok(!clock.isKnown);
about(clock.now(), 2_000_000);
about(clock.sure(), 1_003_700);
for (let minute = 1; minute < 10; minute++) {
  passes(61);
  clock.hear(2_000_000 + 61 * minute);
}
assert.ok(clock.isKnown);
about(clock.sure(), 2_000_000 + 61 * 9);

// A leap that was a mistake revives what it has hidden.
clock.hear(3_000_000);
about(clock.now(), 3_000_000);
clock.hear(2_000_000 + 61 * 9);
assert.ok(clock.isKnown);
about(clock.now(), 2_000_000 + 61 * 9);

// While the machine sleeps its steady clock stands still: the server and the wall clock agree on how long that was.
machine.wall += 30_000;
clock.hear(2_000_000 + 61 * 9 + 30_000);
assert.ok(clock.isKnown);
about(clock.sure(), 2_000_000 + 61 * 9 + 30_000);

// The server does not know the time.
clock.hear(null);
assert.ok(!clock.isKnown && clock.isSilent);

// After another start the wall clock goes on from what was stored.
const stored = clock.anchor;
machine.start = "two";
machine.steady = 0;
machine.wall += 1_000;
about(new ServerClock(stored, read).now(), 2_000_000 + 61 * 9 + 31_000);
