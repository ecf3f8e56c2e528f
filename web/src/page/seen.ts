/** Reports seen messages to the engine: those on the screen, in a focused tab, with no dialog above them. */

import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Message } from "../engine/api";
import { visibleRows } from "./scrolling";
import { engine } from "./store";
import { onEachSecond } from "./time";

/** Whether the page is visible and has the focus. */
export function isPageActive(): boolean {
  return document.visibilityState === "visible" && document.hasFocus();
}

/** Whether the user did anything since the page was loaded: what a reload shows does not count as read. */
function hasInteracted(): boolean {
  return navigator.userActivation?.hasBeenActive ?? true;
}

export function useSeen(list: RefObject<HTMLDivElement | null>, groupId: string, shown: readonly Message[]): void {
  const reported = useRef(new Set<number>());
  useEffect(() => {
    const box = list.current;
    if (!box) return;
    const check = () => {
      if (!isPageActive() || !hasInteracted() || document.querySelector("dialog[open]")) return;
      const { top, bottom, height } = box.getBoundingClientRect();
      const numbers: number[] = [];
      for (const row of visibleRows(box)) {
        const number = Number(row.dataset["number"]);
        if (row.dataset["unread"] === undefined || reported.current.has(number)) continue;
        const rect = row.getBoundingClientRect();
        const visible = Math.min(rect.bottom, bottom) - Math.max(rect.top, top);
        if (visible >= rect.height - 4 || visible >= height / 2) numbers.push(number);
      }
      if (!numbers.length) return;
      for (const each of numbers) reported.current.add(each);
      engine.markSeen(groupId, numbers).catch(() => {
        for (const each of numbers) reported.current.delete(each); // retried in a second
      });
    };
    box.addEventListener("scroll", check, { passive: true });
    addEventListener("focus", check);
    const stop = onEachSecond(check);
    const frame = requestAnimationFrame(check);
    return () => {
      box.removeEventListener("scroll", check);
      removeEventListener("focus", check);
      cancelAnimationFrame(frame);
      stop();
    };
  }, [groupId, shown.length, shown.at(-1)?.number]);
}
