/**
 * Estimates the server's time, also offline, when this machine's clock is set, and when the server's clock leaps.
 *
 * Messages are hidden by the latest possible time. They are erased by the confirmed time, which follows the steady clock
 * and ignores unconfirmed leaps.
 */

/** This machine's clocks, in seconds. `start`: identifies the origin of the steady clock, which differs after each start. */
export interface Reading {
  wall: number;
  steady: number;
  start: string;
}

/** The server's time at one reading. */
export interface Anchor {
  server: number;
  at: Reading;
}

/** A leap is confirmed by this many responses, at least a minute apart. */
const CONFIRMING_ANSWERS = 10;
const ANSWER_INTERVAL_SECONDS = 60;
/** How far the server's time may differ from the estimate: this, plus a thousandth of the elapsed time. */
const TOLERANCE_SECONDS = 10;
const DRIFT = 1_000;
/** The anchor is renewed after ten minutes. */
const MAX_ANCHOR_AGE = 600;

const start = String(Math.random());

export const systemReading = (): Reading => ({
  wall: Date.now() / 1000,
  steady: performance.now() / 1000,
  start,
});

export class ServerClock {
  anchor: Anchor | null;
  private doubt: { anchor: Anchor; answers: number } | null = null;
  /** By its last response, the server does not know the time. */
  isTimeUnknown = false;

  /** `anchor`: the stored one; null: there is none, and the wall clock is used until the first response. */
  constructor(
    anchor: Anchor | null,
    private readonly read: () => Reading = systemReading,
  ) {
    this.anchor = anchor;
  }

  /** Records the server's time `date`, rounded down; null: the server does not know it. */
  recordTime(date: number | null): void {
    this.isTimeUnknown = date === null;
    if (date === null) return;
    const reading = this.read();
    const received = { server: date + 1, at: reading };
    if (this.anchor && !this.doubt && isEquivalent(this.anchor, received)) return;
    if (!this.anchor || agrees(this.anchor, received) || hasSlept(this.anchor, received) || matchesWallClock(this.anchor, received)) {
      this.anchor = received;
      this.doubt = null;
    } else if (!this.doubt || !agrees(this.doubt.anchor, received)) {
      this.doubt = { anchor: received, answers: 1 };
    } else if (elapsed(this.doubt.anchor.at, reading) >= ANSWER_INTERVAL_SECONDS) {
      this.doubt = { anchor: received, answers: this.doubt.answers + 1 };
      if (this.doubt.answers >= CONFIRMING_ANSWERS) {
        this.anchor = received;
        this.doubt = null;
      }
    }
  }

  /** Whether the server's time is known and confirmed. */
  get isKnown(): boolean {
    return this.anchor !== null && !this.doubt && !this.isTimeUnknown;
  }

  /** Whether another response could make the time known or confirmed. */
  get needsAnswer(): boolean {
    return this.isTimeUnknown || (this.doubt !== null && elapsed(this.doubt.anchor.at, this.read()) >= ANSWER_INTERVAL_SECONDS);
  }

  /** Returns the latest possible time. */
  now(): number {
    const reading = this.read();
    return Math.max(...this.candidates(reading).map((each) => each.server + Math.max(elapsed(each.at, reading), reading.wall - each.at.wall)));
  }

  /** Returns the earliest possible time by the steady clock. */
  confirmedNow(): number {
    const reading = this.read();
    return Math.min(...this.candidates(reading).map((each) => each.server + elapsed(each.at, reading)));
  }

  /** Returns the earliest possible time by both clocks, from which timers run. */
  earliest(): number {
    const reading = this.read();
    return Math.max(
      ...this.candidates(reading).map((each) => each.server - 1 + Math.min(elapsed(each.at, reading), Math.max(0, reading.wall - each.at.wall))),
    );
  }

  private candidates(reading: Reading): Anchor[] {
    const found = [this.anchor, this.doubt?.anchor].flatMap((each) => each ?? []);
    return found.length > 0 ? found : [{ server: reading.wall, at: reading }];
  }
}

const isSameStart = (at: Reading, reading: Reading): boolean => at.start === reading.start && reading.steady >= at.steady;

/** Returns the seconds since a reading: by the steady clock, or after another start by the wall clock. */
function elapsed(at: Reading, reading: Reading): number {
  return Math.max(0, isSameStart(at, reading) ? reading.steady - at.steady : reading.wall - at.wall);
}

const agrees = (anchor: Anchor, received: Anchor): boolean => agreesAfter(elapsed(anchor.at, received.at), anchor, received);

/** The steady clock may stop while the machine sleeps; the wall clock then agrees with the server. */
function hasSlept(anchor: Anchor, received: Anchor): boolean {
  const since = received.at.wall - anchor.at.wall;
  return since > elapsed(anchor.at, received.at) && agreesAfter(since, anchor, received);
}

function agreesAfter(since: number, anchor: Anchor, received: Anchor): boolean {
  return Math.abs(received.server - anchor.server - since) <= TOLERANCE_SECONDS + Math.floor(since / DRIFT);
}

/** Whether a time adds nothing to a recent anchor, within the server's rounding: otherwise countdowns would jump. */
function isEquivalent(anchor: Anchor, received: Anchor): boolean {
  const since = elapsed(anchor.at, received.at);
  const isFresh = isSameStart(anchor.at, received.at) && since < MAX_ANCHOR_AGE;
  const wallMoved = Math.abs(received.at.wall - anchor.at.wall - since);
  return isFresh && wallMoved < 1 && Math.abs(received.server - anchor.server - since) <= 1;
}

/** After another start, a time that matches the wall clock is accepted: the clock may have been wrong before. */
function matchesWallClock(anchor: Anchor, received: Anchor): boolean {
  return !isSameStart(anchor.at, received.at) && Math.abs(received.server - received.at.wall) <= TOLERANCE_SECONDS;
}
