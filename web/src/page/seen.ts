/** Tells the engine which messages were really seen: on the screen, in a tab that has the focus, under no dialog. */

import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Message } from "../engine/api";
import { visible } from "./scrolling";
import { engine } from "./store";
import { eachSecond } from "./time";

/** Whether the user looks at this page. */
export function isLooking(): boolean {
  return document.visibilityState === "visible" && document.hasFocus();
}

/** Whether the user has done anything since the page was loaded: a conversation that opened by itself is not read. */
function hasActed(): boolean {
  return navigator.userActivation?.hasBeenActive ?? true;
}

export function useSeen(list: RefObject<HTMLDivElement | null>, groupId: string, here: readonly Message[]): void {
  const told = useRef(new Set<number>());
  useEffect(() => {
    const box = list.current;
    if (!box) return;
    const look = () => {
      if (!isLooking() || !hasActed() || document.querySelector("dialog[open]")) return;
      const { top, bottom, height } = box.getBoundingClientRect();
      const numbers: number[] = [];
      for (const row of visible(box)) {
        const number = Number(row.dataset["number"]);
        if (row.dataset["unread"] === undefined || told.current.has(number)) continue;
        const place = row.getBoundingClientRect();
        const shown = Math.min(place.bottom, bottom) - Math.max(place.top, top);
        if (shown >= place.height - 4 || shown >= height / 2) numbers.push(number);
      }
      if (!numbers.length) return;
      for (const each of numbers) told.current.add(each);
      engine.seen(groupId, numbers).catch(() => {
        for (const each of numbers) told.current.delete(each); // it is told again in a second
      });
    };
    box.addEventListener("scroll", look, { passive: true });
    addEventListener("focus", look);
    const end = eachSecond(look);
    const frame = requestAnimationFrame(look);
    return () => {
      box.removeEventListener("scroll", look);
      removeEventListener("focus", look);
      cancelAnimationFrame(frame);
      end();
    };
  }, [groupId, here.length, here.at(-1)?.number]);
}
