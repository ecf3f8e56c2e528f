/** Times and lifetimes in words, and the second that passes. */

import { useEffect, useState } from "preact/hooks";

export const KEEP = -1;
export const AFTER_FETCH = 0;

const UNITS: readonly [string, number, string][] = [
  ["y", 31_536_000, "year"],
  ["mo", 2_592_000, "month"],
  ["w", 604_800, "week"],
  ["d", 86_400, "day"],
  ["h", 3_600, "hour"],
  ["min", 60, "minute"],
  ["s", 1, "second"],
];

/** The units in which people choose a lifetime: seconds and words. */
export const CHOICES = UNITS.slice(0, 6)
  .map(([, seconds, word]) => [seconds, `${word}s`] as const)
  .reverse();

/** A lifetime in words: 90 minutes. */
export function words(seconds: number): string {
  const [, size, word] = UNITS.find(([, size]) => seconds % size === 0 && seconds >= size) ?? UNITS[6]!;
  const number = seconds / size;
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** How long messages live, as the end of a sentence. */
export function policy(effective: number): string {
  if (effective === KEEP) return "kept for good";
  if (effective === AFTER_FETCH) return "deleted at the server once all have fetched them";
  return `gone after ${words(effective)}`;
}

/** The same in a few letters: ∞, fetched, 90min. */
export function short(effective: number): string {
  if (effective === KEEP) return "∞";
  if (effective === AFTER_FETCH) return "fetched";
  const [unit, size] = UNITS.find(([, size]) => effective % size === 0 && effective >= size) ?? UNITS[6]!;
  return `${effective / size} ${unit}`;
}

/** How much time is left: by the second below an hour. */
export function remaining(seconds: number): string {
  const left = Math.max(0, seconds);
  const two = (number: number) => String(number).padStart(2, "0");
  if (left < 60) return `${left} s`;
  if (left < 3_600) return `${Math.floor(left / 60)}:${two(left % 60)}`;
  if (left < 86_400) return `${Math.floor(left / 3_600)} h ${two(Math.floor((left % 3_600) / 60))}`;
  if (left < 100_000 * 86_400) return `${Math.floor(left / 86_400).toLocaleString("en")} d`;
  return "ages";
}

/** The latest second that JavaScript can date. */
const LATEST = 8_640_000_000_000;
const date = (at: number) => new Date(Math.min(at, LATEST) * 1000);

// To make a formatter takes a hundred times as long as to use it.
const BY_TIME = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit" });
const BY_DAY = new Intl.DateTimeFormat([], { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const BY_DATE = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });

export function timeOfDay(at: number): string {
  return BY_TIME.format(date(at));
}

export function day(at: number): string {
  return BY_DAY.format(date(at));
}

/** Whether two moments are of one day here. */
export function isSameDay(one: number, other: number): boolean {
  return date(one).toDateString() === date(other).toDateString();
}

/** When something was, short: the time today, else the day. */
export function recently(at: number, now: number): string {
  if (!at) return "";
  return isSameDay(at, now) ? timeOfDay(at) : BY_DATE.format(date(at));
}

export function dateAndTime(at: number): string {
  return `${day(at)}, ${timeOfDay(at)}`;
}

// The server's time. It passes for all components at once, so that what is gone goes everywhere in the same moment.

let offset = 0;
let timer = 0;
const listeners = new Set<() => void>();

/** The server's second of now. */
export function now(): number {
  return Math.floor(Date.now() / 1000 + offset);
}

/** Takes the server's clock: its time minus that of this device, in seconds. */
export function setOffset(seconds: number): void {
  if (Math.abs(seconds - offset) < 0.02) return; // views differ by what it takes to make them
  offset = seconds;
  tick();
}

function tick(): void {
  clearTimeout(timer);
  for (const each of [...listeners]) each();
  if (!listeners.size) return;
  const since = (Date.now() / 1000 + offset) % 1;
  timer = window.setTimeout(tick, Math.ceil((1 - since) * 1000));
}

document.addEventListener("visibilitychange", () => document.hidden || tick());

/** Calls `passed` with each second that begins, until the returned function is called. */
export function eachSecond(passed: () => void): () => void {
  listeners.add(passed);
  if (listeners.size === 1) tick();
  return () => void listeners.delete(passed);
}

/** Renders a component with each second. */
export function useNow(): number {
  const [second, setSecond] = useState(now);
  useEffect(() => eachSecond(() => setSecond(now())), []);
  return second;
}

/**
 * Renders a component when one of `times` has come, and not each second: the second that it goes by.
 * `times`: seconds at which something goes.
 */
export function useMoment(times: readonly (number | null)[]): number {
  const [second, setSecond] = useState(now);
  const next = times.reduce<number>(
    (least, each) => (each !== null && each > second && each < least ? each : least),
    Infinity,
  );
  useEffect(() => eachSecond(() => now() >= next && setSecond(now())), [next]);
  return Math.max(second, now());
}
