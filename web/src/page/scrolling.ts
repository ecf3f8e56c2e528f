/** Keeps the place in the list of messages while some come, some go, and the window moves. */

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Conversation, Message } from "../engine/api";
import { attempt, engine } from "./store";

/** So near to an end, in pixels, the window is moved. */
const NEAR = 800;

const LONGEST_MOVE_MS = 500;

/** So near to the end counts as at the end: what arrives then scrolls in. */
const AT_END = 48;

export interface PlaceInList {
  isAtEnd: boolean;
  scrolled: () => void;
  toEnd: () => void;
}

/** Where messages stand in the list, whatever the scroll; those that are visible as a whole first. */
type Tops = { number: number; top: number }[];

export function usePlaceInList(
  list: RefObject<HTMLDivElement | null>,
  conversation: Conversation,
  here: readonly Message[],
): PlaceInList {
  const [isAtEnd, setAtEnd] = useState(true);
  const state = useRef({
    isAtEnd: true,
    tops: [] as Tops,
    isMoving: false,
    hasBegun: false,
    marked: null as number | null,
  });
  const { hasEarlier, hasLater, unreadFrom, around } = conversation;

  /** Notes where what is visible stands. */
  const note = () => {
    const box = list.current;
    if (!box) return;
    const end = !hasLater && box.scrollHeight - box.scrollTop - box.clientHeight < AT_END;
    state.current.isAtEnd = end;
    setAtEnd(end);
    const seen = visible(box).map((row) => ({ number: Number(row.dataset["number"]), top: placeOf(row, box) }));
    const isWhole = ({ top }: { top: number }) => top >= box.scrollTop;
    state.current.tops = [...seen.filter(isWhole), ...seen.filter((each) => !isWhole(each))];
  };

  const latest = useRef(note);
  latest.current = note;

  /** Moves the window, once until the view with it has come. */
  const move = async (towards: "earlier" | "later") => {
    if (state.current.isMoving) return;
    state.current.isMoving = true;
    await attempt(engine.more(towards));
    setTimeout(() => (state.current.isMoving = false), LONGEST_MOVE_MS);
  };

  const scrolled = () => {
    const box = list.current;
    if (!box) return;
    note();
    if (hasEarlier && box.scrollTop < NEAR) void move("earlier");
    else if (hasLater && box.scrollHeight - box.scrollTop - box.clientHeight < NEAR) void move("later");
  };

  const first = here[0]?.number;
  const last = here.at(-1)?.number;
  useLayoutEffect(() => {
    const box = list.current;
    if (!box) return;
    const now = state.current;
    now.isMoving = false;
    const goal = around ?? (now.hasBegun ? null : unreadFrom);
    if (goal !== null && goal !== now.marked && document.getElementById(`m${goal}`)) {
      now.marked = goal;
      const row = document.getElementById(`m${goal}`)!;
      box.scrollTop += topOf(row, box) - (goal === around ? box.clientHeight / 3 : 56);
      if (goal === around) row.focus({ preventScroll: true });
    } else if (!now.hasBegun || (now.isAtEnd && !hasLater)) {
      box.scrollTop = box.scrollHeight;
    } else {
      restore(box, now.tops);
    }
    if (here.length) now.hasBegun = true;
    note();
    // A window that does not fill the list is no end: more is there, and no scroll would ask for it.
    if (hasEarlier && box.scrollTop < NEAR) void move("earlier");
  }, [
    first,
    last,
    here.length,
    hasEarlier,
    hasLater,
    around,
    conversation.sending.length,
    conversation.notices.length,
  ]);

  useEffect(() => {
    const box = list.current!;
    const observer = new ResizeObserver(() => {
      if (state.current.isAtEnd) box.scrollTop = box.scrollHeight;
      else restore(box, state.current.tops);
      latest.current();
    });
    observer.observe(box);
    observer.observe(box.querySelector("ol")!);
    return () => observer.disconnect();
  }, []);

  const toEnd = async () => {
    state.current.isAtEnd = true;
    if (hasLater) await attempt(engine.toEnd());
    list.current?.scrollTo({ top: list.current.scrollHeight });
  };
  return { isAtEnd, scrolled, toEnd };
}

const topOf = (row: Element, box: Element) => row.getBoundingClientRect().top - box.getBoundingClientRect().top;

/** The messages that can be seen now, found without measuring all. */
export function visible(box: HTMLElement): HTMLElement[] {
  const rows = box.querySelectorAll<HTMLElement>("li[data-number]");
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const row = rows[middle]!;
    if (topOf(row, box) + row.offsetHeight <= 0) low = middle + 1;
    else high = middle;
  }
  const found: HTMLElement[] = [];
  for (let at = low; at < rows.length && topOf(rows[at]!, box) < box.clientHeight; at++) found.push(rows[at]!);
  return found;
}

/** Where a message stands in the list, whatever the scroll. */
const placeOf = (row: Element, box: Element) => topOf(row, box) + box.scrollTop;

/** Scrolls by as much as the first of what was visible, and is still there, has moved in the list. */
function restore(box: HTMLElement, tops: Tops): void {
  for (const { number, top } of tops) {
    const row = document.getElementById(`m${number}`);
    if (!row) continue;
    box.scrollTop += placeOf(row, box) - top;
    return;
  }
}
