/** The state of the page: the engine's view, the toast, and the open dialogs. */

import type { ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import { CommandError, type Engine, type View } from "../engine/api";
import { setOffset } from "./time";

/** A value whose changes render the components that use it. */
class Observable<T> {
  private readonly listeners = new Set<() => void>();

  constructor(private value: T) {}

  get(): T {
    return this.value;
  }

  set(value: T): void {
    this.value = value;
    for (const each of [...this.listeners]) each();
  }

  use(): T {
    const [value, setValue] = useState(this.value);
    useEffect(() => {
      const update = () => setValue(this.value);
      update(); // it may have changed since the component was rendered
      this.listeners.add(update);
      return () => void this.listeners.delete(update);
    }, []);
    return value;
  }
}

const view = new Observable<View>({
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

export function setView(next: View): void {
  if (next.clockOffset !== null) setOffset(next.clockOffset);
  view.set(next);
}

/** The commands of the Worker. */
export let engine: Engine;

export function setEngine(connected: Engine): void {
  engine = connected;
}

// Toasts

export interface ToastMessage {
  text: string;
  isError: boolean;
}

const toast = new Observable<ToastMessage | null>(null);
export const useToast = () => toast.use();
let hideTimer = 0;

/** Shows a toast for 8 seconds; an error until it is closed or replaced. */
export function showToast(text: string, isError = false): void {
  clearTimeout(hideTimer);
  toast.set({ text, isError });
  if (!isError) hideTimer = window.setTimeout(hideToast, 8_000);
}

export function hideToast(): void {
  toast.set(null);
}

/** Waits for a command, and shows a toast if it fails. Returns whether it succeeded. */
export async function attempt(promise: Promise<unknown>): Promise<boolean> {
  try {
    await promise;
    if (toast.get()?.isError) hideToast();
    return true;
  } catch (error) {
    showToast(errorText(error), true);
    return false;
  }
}

/** Returns the text to show for the error of a command. */
export function errorText(error: unknown): string {
  if (!(error instanceof CommandError)) return String(error);
  const fields = Object.entries(error.fault.fields).map(([name, texts]) => `${name}: ${texts.join(" ")}`);
  return fields.length && !fields.every((each) => error.message.includes(each))
    ? `${error.message} (${fields.join("; ")})`
    : error.message;
}

// Dialogs: a stack

export interface OpenDialog {
  id: number;
  render: () => ComponentChild;
}

const dialogs = new Observable<readonly OpenDialog[]>([]);
export const useDialogs = () => dialogs.use();
let lastId = 0;

export function openDialog(render: () => ComponentChild): void {
  dialogs.set([...dialogs.get(), { id: ++lastId, render }]);
}

/** Removes a dialog that was closed from the stack. */
export function dialogClosed(id: number): void {
  dialogs.set(dialogs.get().filter((each) => each.id !== id));
}

/** Closes the topmost dialog; the browser restores the focus. */
export function closeDialog(): void {
  const open = document.querySelectorAll<HTMLDialogElement>("dialog[open]");
  open[open.length - 1]?.close();
}

export function closeAllDialogs(): void {
  dialogs.set([]);
}
