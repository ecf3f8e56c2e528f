/** Formats times and lifetimes, and renders components when the server's time advances. */

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

/** The units in which a lifetime can be entered: seconds and plural. */
export const LIFETIME_UNITS = UNITS.slice(0, 6)
  .map(([, seconds, word]) => [seconds, `${word}s`] as const)
  .reverse();

/** Returns a duration in words: "90 minutes". */
export function durationText(seconds: number): string {
  const [, size, word] = UNITS.find(([, size]) => seconds % size === 0 && seconds >= size) ?? UNITS[6]!;
  const number = seconds / size;
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** Returns the end of the sentence "Messages are ...". */
export function lifetimeText(effective: number): string {
  if (effective === KEEP) return "kept forever";
  if (effective === AFTER_FETCH) return "deleted from the server once all members have fetched them";
  return `deleted after ${durationText(effective)}`;
}

/** Returns a lifetime in a few characters: "∞", "fetched", "90 min". */
export function shortLifetime(effective: number): string {
  if (effective === KEEP) return "∞";
  if (effective === AFTER_FETCH) return "fetched";
  const [unit, size] = UNITS.find(([, size]) => effective % size === 0 && effective >= size) ?? UNITS[6]!;
  return `${effective / size} ${unit}`;
}

/** Returns the time left, by the second below an hour. */
export function remainingText(seconds: number): string {
  const left = Math.max(0, seconds);
  const two = (number: number) => String(number).padStart(2, "0");
  if (left < 60) return `${left} s`;
  if (left < 3_600) return `${Math.floor(left / 60)}:${two(left % 60)}`;
  if (left < 86_400) return `${Math.floor(left / 3_600)} h ${two(Math.floor((left % 3_600) / 60))}`;
  if (left < 100_000 * 86_400) return `${Math.floor(left / 86_400).toLocaleString("en")} d`;
  return "∞";
}

/** The latest Unix second that a JavaScript Date can represent. */
const MAX_DATE = 8_640_000_000_000;
const date = (at: number) => new Date(Math.min(at, MAX_DATE) * 1000);

// Creating a formatter takes a hundred times as long as using it.
const TIME_FORMAT = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit" });
const DAY_FORMAT = new Intl.DateTimeFormat([], { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const DATE_FORMAT = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });

export function timeOfDay(at: number): string {
  return TIME_FORMAT.format(date(at));
}

export function day(at: number): string {
  return DAY_FORMAT.format(date(at));
}

/** Whether two times are on the same day in the local time zone. */
export function isSameDay(one: number, other: number): boolean {
  return date(one).toDateString() === date(other).toDateString();
}

/** Returns the time of day for today, otherwise the date. */
export function shortTime(at: number, now: number): string {
  if (!at) return "";
  return isSameDay(at, now) ? timeOfDay(at) : DATE_FORMAT.format(date(at));
}

export function dateAndTime(at: number): string {
  return `${day(at)}, ${timeOfDay(at)}`;
}

// The server's time. All components are rendered in the same tick, so that a message disappears everywhere at once.

let offset = 0;
let timer = 0;
const listeners = new Set<() => void>();

/** Returns the server's time in Unix seconds. */
export function now(): number {
  return Math.floor(Date.now() / 1000 + offset);
}

/** Sets the server's time minus that of this device, in seconds. */
export function setOffset(seconds: number): void {
  if (Math.abs(seconds - offset) < 0.02) return; // the time that it takes to make a view varies
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

/** Calls `listener` at the beginning of each second, until the returned function is called. */
export function onEachSecond(listener: () => void): () => void {
  listeners.add(listener);
  if (listeners.size === 1) tick();
  return () => void listeners.delete(listener);
}

/** Renders a component each second. */
export function useNow(): number {
  const [second, setSecond] = useState(now);
  useEffect(() => onEachSecond(() => setSecond(now())), []);
  return second;
}

/**
 * Renders a component when the next of `times` is reached, and returns the current second. Cheaper than useNow.
 * `times`: Unix seconds at which messages expire; null: never.
 */
export function useNextExpiry(times: readonly (number | null)[]): number {
  const [second, setSecond] = useState(now);
  const next = times.reduce<number>(
    (least, each) => (each !== null && each > second && each < least ? each : least),
    Infinity,
  );
  useEffect(() => onEachSecond(() => now() >= next && setSecond(now())), [next]);
  return Math.max(second, now());
}
