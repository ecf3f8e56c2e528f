/** Tracks the open conversation in the browser's history, so that Back works on a phone. URLs do not contain it. */

import { useEffect, useState } from "preact/hooks";
import { attempt, engine } from "./store";

interface HistoryState {
  group: string | null;
}

const changes = new EventTarget();
const openGroup = (): string | null => (history.state as HistoryState | null)?.group ?? null;

/** Opens a conversation, at message number `around` if given. */
export function navigateTo(group: string, around?: number): void {
  const state: HistoryState = { group };
  if (openGroup()) history.replaceState(state, "");
  else history.pushState(state, "");
  changes.dispatchEvent(new Event("change"));
  if (around) changes.dispatchEvent(new CustomEvent("message", { detail: { group, number: around } }));
  void attempt(engine.open(group, around));
}

/** Calls `listener` when a message of a group is opened, until the returned function is called. */
export function onMessageOpened(group: string, listener: (number: number) => void): () => void {
  const receive = (event: Event) => {
    const { detail } = event as CustomEvent<{ group: string; number: number }>;
    if (detail.group === group) listener(detail.number);
  };
  changes.addEventListener("message", receive);
  return () => changes.removeEventListener("message", receive);
}

/** Returns to the list. */
export function navigateBack(): void {
  if (openGroup()) history.back();
}

/** Closes a conversation that no longer exists. */
export function closeConversation(): void {
  if (!openGroup()) return;
  history.replaceState(null, "");
  changes.dispatchEvent(new Event("change"));
}

/** Returns the id of the open conversation, which is kept over a reload. */
export function useOpenGroup(): string | null {
  const [group, setGroup] = useState(openGroup);
  useEffect(() => {
    const update = () => setGroup(openGroup());
    const onPopState = () => {
      update();
      void attempt(engine.open(openGroup()));
    };
    update(); // it may have changed since the component was rendered
    changes.addEventListener("change", update);
    addEventListener("popstate", onPopState);
    if (openGroup()) void attempt(engine.open(openGroup()));
    return () => {
      changes.removeEventListener("change", update);
      removeEventListener("popstate", onPopState);
    };
  }, []);
  return group;
}
