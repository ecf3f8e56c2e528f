/**
 * Own texts that were sent and not fetched yet. Also those that were fetched while the keys were unconfirmed: they are sent
 * again if others do not have the keys.
 */

import { utf8 } from "../bytes";
import { NO_EPOCH, type GroupRecord, type SentText } from "./group-record";

/** A text that was not fetched after two days was not stored: send ids are valid for a day. */
const SENT_SECONDS = 2 * 86_400;
/** A request that was pending when the page was closed arrives within ten minutes, or never. */
const IN_TRANSIT_SECONDS = 600;
/** A member in the wrong branch notices it within six hours. */
export const UNCONFIRMED_SECONDS = 6 * 3_600;

const isInTransit = (each: SentText): boolean => each.again === null && each.kept === null;

export function keepSent(
  record: GroupRecord,
  text: Pick<SentText, "hash" | "text" | "epoch" | "madeAt" | "original" | "sendId">,
): void {
  record.own = record.own.filter((each) => !(isInTransit(each) && each.madeAt < text.madeAt - SENT_SECONDS));
  record.own.push({ ...text, key: ++record.lastKey, again: null, kept: null, isUnwanted: false });
}

export const findSent = (record: GroupRecord, hash: string): SentText | undefined => record.own.find((each) => each.hash === hash);

/** Whether a text was fetched before, and is kept because others may be unable to read it. */
export const isKept = (own: SentText): boolean => !isInTransit(own);

export function dropSent(record: GroupRecord, key: number): void {
  record.own = record.own.filter((each) => each.key !== key);
}

/** Whether a text from before the page was opened was not stored. `last`: the last key from then. */
export const isStale = (own: SentText, last: number, now: number): boolean =>
  isInTransit(own) && own.key <= last && own.madeAt < now - IN_TRANSIT_SECONDS;

/** Keeps a text to send again: it was stored too late, or its keys were dropped. */
export function keepForResend(own: SentText, number: number, timer: number): void {
  own.again = timer;
  own.kept = own.epoch === NO_EPOCH ? timer : null;
  own.original ||= number;
}

/** Keeps a fetched text until it is known whether others have its keys. */
export function keepUntilConfirmed(own: SentText, number: number, timer: number): void {
  own.kept = timer;
  own.original ||= number;
}

export const isConfirmable = (own: SentText, now: number): boolean =>
  own.kept !== null && own.again === null && own.madeAt < now - UNCONFIRMED_SECONDS;

/** Marks kept texts to be sent again, after the keys of a group were dropped. */
export function markKeysLost(record: GroupRecord): void {
  for (const each of record.own) {
    each.epoch = NO_EPOCH;
    each.again ??= each.kept;
  }
}

/** Drops kept texts from before a new member joined, who must not be able to read them. */
export function dropSentBefore(record: GroupRecord, number: number): void {
  record.own = record.own.filter((each) => each.kept === null || each.original >= number);
}

/** Returns the numbers of messages whose texts are kept. */
export const keptNumbers = (record: GroupRecord): number[] =>
  record.own.flatMap((each) => (isInTransit(each) ? [] : [each.original]));

/** Erases the texts of messages that are gone. Repetitions in transit are recognized by their hash later. */
export function dropErased(record: GroupRecord, numbers: ReadonlySet<number>, areTakenBack: boolean): void {
  record.own = record.own.filter((each) => !numbers.has(each.original) || isInTransit(each));
  for (const each of record.own) {
    if (!numbers.has(each.original)) continue;
    each.text = "";
    each.isUnwanted ||= areTakenBack;
  }
  if (!areTakenBack) return;
  for (const each of record.repeats) if (each.isOwn && numbers.has(each.original)) recordUnwanted(record, each.number);
}

export function recordUnwanted(record: GroupRecord, number: number): void {
  if (!record.unwanted.includes(number)) record.unwanted.push(number);
}

/** Drops the other attempts to send a text, after one was fetched. */
export function dropOtherAttempts(record: GroupRecord, own: SentText): void {
  record.own = record.own.filter(
    (each) => each.key === own.key || !isInTransit(each) || own.sendId === "" || each.sendId !== own.sendId,
  );
}

/** Drops all attempts to send a text, except kept ones. */
export function dropAttempts(record: GroupRecord, sendId: string): void {
  record.own = record.own.filter((each) => !isInTransit(each) || each.sendId !== sendId);
}

/** Drops the text that `own` repeats, and other attempts. */
export function dropResent(record: GroupRecord, own: SentText): void {
  record.own = record.own.filter((each) => each.key === own.key || each.original !== own.original);
}

const RESENT_PREFIX = "again ";
const MAX_DIGITS = 15;

/** Returns the authenticated data of a message that is sent again: the number of its first transmission. */
export const encodeOriginal = (original: number): Uint8Array => utf8(`${RESENT_PREFIX}${original}`);

/** Returns the number of the first transmission of a message, less than its own; 0 if it is not a repetition. */
export function readOriginal(authenticatedData: Uint8Array, number: number): number {
  const text = new TextDecoder().decode(authenticatedData);
  const digits = text.startsWith(RESENT_PREFIX) ? text.slice(RESENT_PREFIX.length) : "";
  if (!/^[0-9]+$/.test(digits) || digits.length > MAX_DIGITS) return 0;
  return Number(digits) < number ? Number(digits) : 0;
}
