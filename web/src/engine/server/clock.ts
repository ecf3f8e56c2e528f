/**
 * Tells the server's time, also offline, when the machine's clock is set, and while the server's leaps.
 *
 * By the latest that it may be, things are hidden. By what is sure, they are erased: by the steady clock, and not by a
 * leap that is in doubt.
 */

/** This machine's clocks, in seconds. `start`: which steady clock it is; another one counts from elsewhere. */
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

/** A leap is believed once so many answers go by it, each a minute after the one before. */
const CONFIRMED_BY = 10;
const APART_SECONDS = 60;
/** The server's time may differ so much from what this machine's clocks make of it, and by a thousandth of the time since. */
const SLACK_SECONDS = 10;
const DRIFT = 1_000;
/** After ten minutes the time is taken anew. */
const GOOD_SECONDS = 600;

const start = String(Math.random());

export const systemReading = (): Reading => ({
  wall: Date.now() / 1000,
  steady: performance.now() / 1000,
  start,
});

export class ServerClock {
  anchor: Anchor | null;
  private doubt: { anchor: Anchor; answers: number } | null = null;
  /** The server has answered last, and does not know what time it is. */
  isSilent = false;

  /** `anchor`: as it was stored; null: the server was never heard, and the wall clock counts until it is. */
  constructor(
    anchor: Anchor | null,
    private readonly read: () => Reading = systemReading,
  ) {
    this.anchor = anchor;
  }

  /** The server says that it is `date`, rounded down; null: it does not know. */
  hear(date: number | null): void {
    this.isSilent = date === null;
    if (date === null) return;
    const reading = this.read();
    const heard = { server: date + 1, at: reading };
    if (this.anchor && !this.doubt && isAsGood(this.anchor, heard)) return;
    if (!this.anchor || agree(this.anchor, heard) || hasSlept(this.anchor, heard) || isAloneRight(this.anchor, heard)) {
      this.anchor = heard;
      this.doubt = null;
    } else if (!this.doubt || !agree(this.doubt.anchor, heard)) {
      this.doubt = { anchor: heard, answers: 1 };
    } else if (passed(this.doubt.anchor.at, reading) >= APART_SECONDS) {
      this.doubt = { anchor: heard, answers: this.doubt.answers + 1 };
      if (this.doubt.answers >= CONFIRMED_BY) {
        this.anchor = heard;
        this.doubt = null;
      }
    }
  }

  /** Whether the server tells a time that is believed. */
  get isKnown(): boolean {
    return this.anchor !== null && !this.doubt && !this.isSilent;
  }

  /** Whether another answer would end a doubt, or a silence. */
  get wantsAnswers(): boolean {
    return this.isSilent || (this.doubt !== null && passed(this.doubt.anchor.at, this.read()) >= APART_SECONDS);
  }

  /** The latest that it may be. */
  now(): number {
    const reading = this.read();
    return Math.max(...this.told(reading).map((each) => each.server + Math.max(passed(each.at, reading), reading.wall - each.at.wall)));
  }

  /** The time that has come for sure. */
  sure(): number {
    const reading = this.read();
    return Math.min(...this.told(reading).map((each) => each.server + passed(each.at, reading)));
  }

  /** The earliest that it may be: from it on timers run. */
  earliest(): number {
    const reading = this.read();
    return Math.max(
      ...this.told(reading).map((each) => each.server - 1 + Math.min(passed(each.at, reading), Math.max(0, reading.wall - each.at.wall))),
    );
  }

  private told(reading: Reading): Anchor[] {
    const found = [this.anchor, this.doubt?.anchor].flatMap((each) => each ?? []);
    return found.length > 0 ? found : [{ server: reading.wall, at: reading }];
  }
}

const isSameStart = (at: Reading, reading: Reading): boolean => at.start === reading.start && reading.steady >= at.steady;

/** By the steady clock, or by the wall clock after another start. */
function passed(at: Reading, reading: Reading): number {
  return Math.max(0, isSameStart(at, reading) ? reading.steady - at.steady : reading.wall - at.wall);
}

const agree = (anchor: Anchor, heard: Anchor): boolean => agreesAfter(passed(anchor.at, heard.at), anchor, heard);

/** The steady clock may stand still while the machine sleeps: then the wall clock has gone on as the server's has. */
function hasSlept(anchor: Anchor, heard: Anchor): boolean {
  const since = heard.at.wall - anchor.at.wall;
  return since > passed(anchor.at, heard.at) && agreesAfter(since, anchor, heard);
}

function agreesAfter(since: number, anchor: Anchor, heard: Anchor): boolean {
  return Math.abs(heard.server - anchor.server - since) <= SLACK_SECONDS + Math.floor(since / DRIFT);
}

/** Whether a time says no more than one of before, within the second to which the server rounds: countdowns do not jump. */
function isAsGood(anchor: Anchor, heard: Anchor): boolean {
  const since = passed(anchor.at, heard.at);
  const isFresh = isSameStart(anchor.at, heard.at) && since < GOOD_SECONDS;
  const wallMoved = Math.abs(heard.at.wall - anchor.at.wall - since);
  return isFresh && wallMoved < 1 && Math.abs(heard.server - anchor.server - since) <= 1;
}

/** After another start the wall clock may have been wrong before it. */
function isAloneRight(anchor: Anchor, heard: Anchor): boolean {
  return !isSameStart(anchor.at, heard.at) && Math.abs(heard.server - heard.at.wall) <= SLACK_SECONDS;
}
