/**
 * Own texts for the moments in which nothing else has them: sent, but not come back. Also those that came back while it was
 * not sure that others have their keys: they are sent again if these have not.
 */

import { NO_EPOCH, type Held, type OwnText } from "./held";

/** What was sent and has not come back for two days never will: a send that is repeated counts for a day. */
const OWN_SECONDS = 2 * 86_400;
/** What a program had handed to the network when it ended arrives within ten minutes, or never. */
const UNDER_WAY_SECONDS = 600;
/** Who has come in by keys that are not those of the others knows it within six hours. */
export const UNSURE_SECONDS = 6 * 3_600;

const isUnderWay = (each: OwnText): boolean => each.again === null && each.kept === null;

export function keepOwn(
  held: Held,
  text: Pick<OwnText, "hash" | "text" | "epoch" | "madeAt" | "original" | "sendId">,
): void {
  held.own = held.own.filter((each) => !(isUnderWay(each) && each.madeAt < text.madeAt - OWN_SECONDS));
  held.own.push({ ...text, key: ++held.lastKey, again: null, kept: null, isUnwanted: false });
}

export const findOwn = (held: Held, hash: string): OwnText | undefined => held.own.find((each) => each.hash === hash);

/** It came back before, and is kept all the same. */
export const isKept = (own: OwnText): boolean => !isUnderWay(own);

export function dropOwn(held: Held, key: number): void {
  held.own = held.own.filter((each) => each.key !== key);
}

/** Whether there is something that `dropFormer` drops. `last`: the last text that an earlier program has left. */
export const isFormer = (own: OwnText, last: number, now: number): boolean =>
  isUnderWay(own) && own.key <= last && own.madeAt < now - UNDER_WAY_SECONDS;

/** Keeps what came too late to be read by everybody; or with keys given up since, as `giveUpKeys` does. */
export function keepToSendAgain(own: OwnText, number: number, timer: number): void {
  own.again = timer;
  own.kept = own.epoch === NO_EPOCH ? timer : null;
  own.original ||= number;
}

/** Keeps what came back as long as it is not known whether the others have its keys. */
export function keepUntilSure(own: OwnText, number: number, timer: number): void {
  own.kept = timer;
  own.original ||= number;
}

export const isKeptForLong = (own: OwnText, now: number): boolean =>
  own.kept !== null && own.again === null && own.madeAt < now - UNSURE_SECONDS;

/** The keys of a group are given up: what others may not have read is to be sent again with those that follow. */
export function giveUpKeys(held: Held): void {
  for (const each of held.own) {
    each.epoch = NO_EPOCH;
    each.again ??= each.kept;
  }
}

/** Erases what came in time for those who were there: somebody new came after it, who gets nothing of it. */
export function dropSaidBefore(held: Held, number: number): void {
  held.own = held.own.filter((each) => each.kept === null || each.original >= number);
}

/** The numbers of the messages of which a text is kept. */
export const keptNumbers = (held: Held): number[] =>
  held.own.flatMap((each) => (isUnderWay(each) ? [] : [each.original]));

/** Erases what is kept of messages that are gone. What repeats one and is under way is known by its hash once it comes. */
export function dropGone(held: Held, numbers: ReadonlySet<number>, areTakenBack: boolean): void {
  held.own = held.own.filter((each) => !numbers.has(each.original) || isUnderWay(each));
  for (const each of held.own) {
    if (!numbers.has(each.original)) continue;
    each.text = "";
    each.isUnwanted ||= areTakenBack;
  }
  if (!areTakenBack) return;
  for (const each of held.repeats) if (each.isOwn && numbers.has(each.original)) noteUnwanted(held, each.number);
}

export function noteUnwanted(held: Held, number: number): void {
  if (!held.unwanted.includes(number)) held.unwanted.push(number);
}

/** Erases the text as it was encrypted for other tries to send it: one is stored, and came. */
export function dropOtherTries(held: Held, own: OwnText): void {
  held.own = held.own.filter(
    (each) => each.key === own.key || !isUnderWay(each) || own.sendId === "" || each.sendId !== own.sendId,
  );
}

/** Erases the text as it was encrypted for each try to send it; not what came back and is kept. */
export function dropTries(held: Held, sendId: string): void {
  held.own = held.own.filter((each) => !isUnderWay(each) || each.sendId !== sendId);
}

/** Erases the text that `own` repeats, and other tries: it is there, though the answer to it may be lost. */
export function hasComeAgain(held: Held, own: OwnText): void {
  held.own = held.own.filter((each) => each.key === own.key || each.original !== own.original);
}
