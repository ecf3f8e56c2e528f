/** Which conversation is open. On a phone the way back is the browser's own. Addresses do not tell which it is. */

import { useEffect, useState } from "preact/hooks";
import { attempt, engine } from "./store";

interface Place {
  group: string | null;
}

const changed = new EventTarget();
const read = (): string | null => (history.state as Place | null)?.group ?? null;

/** Opens a conversation, at a message if `around` is its number. */
export function choose(group: string, around?: number): void {
  const place: Place = { group };
  if (read()) history.replaceState(place, "");
  else history.pushState(place, "");
  changed.dispatchEvent(new Event("change"));
  void attempt(engine.open(group, around));
}

/** Back to the list. */
export function leave(): void {
  if (read()) history.back();
}

/** Forgets which conversation is open, where there is no way back to it. */
export function forget(): void {
  if (!read()) return;
  history.replaceState(null, "");
  changed.dispatchEvent(new Event("change"));
}

/** Returns which conversation is open; after a reload the one from before. */
export function usePlace(): string | null {
  const [group, setGroup] = useState(read);
  useEffect(() => {
    const follow = () => setGroup(read());
    const moved = () => {
      follow();
      void attempt(engine.open(read()));
    };
    follow(); // it may have changed since the component was rendered
    changed.addEventListener("change", follow);
    addEventListener("popstate", moved);
    if (read()) void attempt(engine.open(read()));
    return () => {
      changed.removeEventListener("change", follow);
      removeEventListener("popstate", moved);
    };
  }, []);
  return group;
}
