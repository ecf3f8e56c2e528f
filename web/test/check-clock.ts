/** Checks the estimate of the server's time. Exits with an error on failure. */

import assert from "node:assert/strict";
import { ServerClock, type Reading } from "../src/engine/server/clock";

const machine: Reading = { wall: 1_000_000, steady: 50, start: "one" };
const read = (): Reading => ({ ...machine });

function advance(seconds: number): void {
  machine.wall += seconds;
  machine.steady += seconds;
}

const about = (one: number, other: number): void => assert.ok(Math.abs(one - other) <= 2, `${one} is not about ${other}`);

// The server is an hour ahead of this machine.
const clock = new ServerClock(null, read);
clock.recordTime(1_003_600);
about(clock.now(), 1_003_600);
advance(100);
about(clock.now(), 1_003_700);
about(clock.confirmedNow(), 1_003_700);

// The wall clock is set forward: messages are hidden, but not erased.
machine.wall += 5_000;
about(clock.now(), 1_008_700);
about(clock.confirmedNow(), 1_003_700);
machine.wall -= 5_000;

// The server's clock leaps: messages are hidden, and erased only after ten responses.
clock.recordTime(2_000_000);
assert.ok(!clock.isKnown);
about(clock.now(), 2_000_000);
about(clock.confirmedNow(), 1_003_700);
for (let minute = 1; minute < 10; minute++) {
  advance(61);
  clock.recordTime(2_000_000 + 61 * minute);
}
assert.ok(clock.isKnown);
about(clock.confirmedNow(), 2_000_000 + 61 * 9);

// A leap that is corrected reveals the hidden messages.
clock.recordTime(3_000_000);
about(clock.now(), 3_000_000);
clock.recordTime(2_000_000 + 61 * 9);
assert.ok(clock.isKnown);
about(clock.now(), 2_000_000 + 61 * 9);

// The machine sleeps and its steady clock stops: the server and the wall clock agree.
machine.wall += 30_000;
clock.recordTime(2_000_000 + 61 * 9 + 30_000);
assert.ok(clock.isKnown);
about(clock.confirmedNow(), 2_000_000 + 61 * 9 + 30_000);

// The server does not know the time.
clock.recordTime(null);
assert.ok(!clock.isKnown && clock.isTimeUnknown);

// After another start the wall clock continues from the stored anchor.
const stored = clock.anchor;
machine.start = "two";
machine.steady = 0;
machine.wall += 1_000;
about(new ServerClock(stored, read).now(), 2_000_000 + 61 * 9 + 31_000);
