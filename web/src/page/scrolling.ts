/** Keeps the scroll position of the message list while messages are added and removed and the window moves. */

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Conversation, Message } from "../engine/api";
import { onMessageOpened } from "./place";
import { attempt, engine } from "./store";

/** The window is moved when the scroll position is this near to one of its ends. */
const LOAD_AHEAD_PX = 800;

const MAX_LOAD_MS = 500;

/** At most this far from the end counts as at the end: new messages then scroll into view. */
const END_TOLERANCE_PX = 48;

export interface ScrollPosition {
  isAtEnd: boolean;
  onScroll: () => void;
  scrollToEnd: () => void;
}

/** Offsets of visible messages from the top of the list, those that are fully visible first. */
type Offsets = { number: number; top: number }[];

export function useScrollPosition(
  list: RefObject<HTMLDivElement | null>,
  conversation: Conversation,
  shown: readonly Message[],
): ScrollPosition {
  const [isAtEnd, setAtEnd] = useState(true);
  const state = useRef({
    isAtEnd: true,
    offsets: [] as Offsets,
    isLoading: false,
    isInitialized: false,
    scrolledTo: null as number | null,
  });
  const { hasEarlier, hasLater, unreadFrom, around } = conversation;

  /** Records the offsets of the visible messages. */
  const record = () => {
    const box = list.current;
    if (!box) return;
    const end = !hasLater && box.scrollHeight - box.scrollTop - box.clientHeight < END_TOLERANCE_PX;
    state.current.isAtEnd = end;
    setAtEnd(end);
    const offsets = visibleRows(box).map((row) => ({ number: Number(row.dataset["number"]), top: offsetOf(row, box) }));
    const isWhole = ({ top }: { top: number }) => top >= box.scrollTop;
    state.current.offsets = [...offsets.filter(isWhole), ...offsets.filter((each) => !isWhole(each))];
  };

  const latest = useRef(record);
  latest.current = record;

  /** Moves the window, at most once until the new view is there. */
  const loadMore = async (towards: "earlier" | "later") => {
    if (state.current.isLoading) return;
    state.current.isLoading = true;
    await attempt(engine.loadMore(towards));
    setTimeout(() => (state.current.isLoading = false), MAX_LOAD_MS);
  };

  const onScroll = () => {
    const box = list.current;
    if (!box) return;
    record();
    if (hasEarlier && box.scrollTop < LOAD_AHEAD_PX) void loadMore("earlier");
    else if (hasLater && box.scrollHeight - box.scrollTop - box.clientHeight < LOAD_AHEAD_PX) void loadMore("later");
  };

  const first = shown[0]?.number;
  const last = shown.at(-1)?.number;
  useLayoutEffect(() => {
    const box = list.current;
    if (!box) return;
    const now = state.current;
    now.isLoading = false;
    const target = around ?? (now.isInitialized ? null : unreadFrom);
    if (target !== null && target !== now.scrolledTo && document.getElementById(`m${target}`)) {
      now.scrolledTo = target;
      const row = document.getElementById(`m${target}`)!;
      if (target === around) show(row, box);
      else box.scrollTop += topOf(row, box) - 56;
    } else if (!now.isInitialized || (now.isAtEnd && !hasLater)) {
      box.scrollTop = box.scrollHeight;
    } else {
      restore(box, now.offsets);
    }
    if (shown.length) now.isInitialized = true;
    record();
    // Without a scroll bar no scroll event would load more.
    if (hasEarlier && box.scrollTop < LOAD_AHEAD_PX) void loadMore("earlier");
  }, [
    first,
    last,
    shown.length,
    hasEarlier,
    hasLater,
    around,
    conversation.sending.length,
    conversation.notices.length,
  ]);

  useEffect(
    () =>
      // It may be the message that was opened last, which the user has scrolled away: then the view does not change.
      onMessageOpened(conversation.groupId, (number) => {
        const row = document.getElementById(`m${number}`);
        state.current.scrolledTo = row ? number : null;
        if (row) show(row, list.current!);
        latest.current();
      }),
    [],
  );

  useEffect(() => {
    const box = list.current!;
    const observer = new ResizeObserver(() => {
      if (state.current.isAtEnd) box.scrollTop = box.scrollHeight;
      else restore(box, state.current.offsets);
      latest.current();
    });
    observer.observe(box);
    observer.observe(box.querySelector("ol")!);
    return () => observer.disconnect();
  }, []);

  const scrollToEnd = async () => {
    state.current.isAtEnd = true;
    if (hasLater) await attempt(engine.showNewest());
    list.current?.scrollTo({ top: list.current.scrollHeight });
  };
  return { isAtEnd, onScroll, scrollToEnd };
}

const topOf = (row: Element, box: Element) => row.getBoundingClientRect().top - box.getBoundingClientRect().top;

/** Returns the rows of the visible messages, by binary search. */
export function visibleRows(box: HTMLElement): HTMLElement[] {
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

/** Scrolls to the message that was opened, and focuses it. */
function show(row: HTMLElement, box: HTMLElement): void {
  box.scrollTop += topOf(row, box) - box.clientHeight / 3;
  row.focus({ preventScroll: true });
}

/** Returns the offset of a row from the top of the list. */
const offsetOf = (row: Element, box: Element) => topOf(row, box) + box.scrollTop;

/** Scrolls so that the first message that was visible, and still exists, is where it was on the screen. */
function restore(box: HTMLElement, offsets: Offsets): void {
  for (const { number, top } of offsets) {
    const row = document.getElementById(`m${number}`);
    if (!row) continue;
    box.scrollTop += offsetOf(row, box) - top;
    return;
  }
}
