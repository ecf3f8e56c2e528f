/** What the page knows: the engine's view, what it says in passing, and which dialogs are open. */

import type { ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Failed, type Engine, type View } from "../engine/api";
import { setOffset } from "./time";

/** A value that components follow. */
class Cell<T> {
  private readonly followers = new Set<() => void>();

  constructor(private value: T) {}

  get(): T {
    return this.value;
  }

  set(value: T): void {
    this.value = value;
    for (const each of [...this.followers]) each();
  }

  use(): T {
    const [value, setValue] = useState(this.value);
    useEffect(() => {
      const follow = () => setValue(this.value);
      follow(); // it may have changed since the component was rendered
      this.followers.add(follow);
      return () => void this.followers.delete(follow);
    }, []);
    return value;
  }
}

const view = new Cell<View>({
  phase: "starting",
  fault: "",
  account: null,
  connection: { state: "connecting", why: "", retryAt: 0 },
  clockOffset: null,
  groups: [],
  invites: [],
  conversation: null,
});

export const useView = () => view.use();
export const currentView = () => view.get();

export function takeView(next: View): void {
  if (next.clockOffset !== null) setOffset(next.clockOffset);
  view.set(next);
}

/** The commands. */
export let engine: Engine;

export function takeEngine(connected: Engine): void {
  engine = connected;
}

// What is said in passing

export interface Said {
  text: string;
  isFault: boolean;
}

const said = new Cell<Said | null>(null);
export const useSaid = () => said.use();
let silence = 0;

/** Says a sentence for 8 seconds; a fault until it is closed, or something else is said. */
export function say(text: string, isFault = false): void {
  clearTimeout(silence);
  said.set({ text, isFault });
  if (!isFault) silence = window.setTimeout(hush, 8_000);
}

export function hush(): void {
  said.set(null);
}

/** Says why a command failed. Answers whether it has succeeded. */
export async function attempt(promise: Promise<unknown>): Promise<boolean> {
  try {
    await promise;
    if (said.get()?.isFault) hush();
    return true;
  } catch (error) {
    say(why(error), true);
    return false;
  }
}

/** Why a command failed, for people. */
export function why(error: unknown): string {
  if (!(error instanceof Failed)) return String(error);
  const fields = Object.entries(error.fault.fields).map(([name, texts]) => `${name}: ${texts.join(" ")}`);
  return fields.length && !fields.every((each) => error.message.includes(each))
    ? `${error.message} (${fields.join("; ")})`
    : error.message;
}

// Dialogs lie one over the other

export interface Opened {
  id: number;
  draw: () => ComponentChild;
}

const dialogs = new Cell<readonly Opened[]>([]);
export const useDialogs = () => dialogs.use();
let last = 0;

export function openDialog(draw: () => ComponentChild): void {
  dialogs.set([...dialogs.get(), { id: ++last, draw }]);
}

/** Forgets one that was closed. */
export function dialogClosed(id: number): void {
  dialogs.set(dialogs.get().filter((each) => each.id !== id));
}

/** Closes the one on top; the browser then has the focus where it was before. */
export function closeDialog(): void {
  const open = document.querySelectorAll<HTMLDialogElement>("dialog[open]");
  open[open.length - 1]?.close();
}

/** Closes all. */
export function closeDialogs(): void {
  dialogs.set([]);
}
