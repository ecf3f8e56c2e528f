/** Notifications of the browser, while the user is not looking. What they say, a device may keep: by default nothing. */

import type { Call } from "../engine/api";
import { isLooking } from "./seen";
import { called, inPassing } from "./text";

export type Calls = "off" | "quiet" | "text";

const KEY = "calls";

/** It calls at most every 5 seconds: who comes back after a night is called once. */
const EVERY = 5_000;

const MOST_TOLD = 100;

let last = 0;

export function calls(): Calls {
  const chosen = localStorage.getItem(KEY);
  return allowed() === "granted" && (chosen === "quiet" || chosen === "text") ? chosen : "off";
}

export function allowed(): NotificationPermission {
  return "Notification" in window ? Notification.permission : "denied";
}

/** Asks the browser to allow it, if that is needed. */
export async function setCalls(chosen: Calls): Promise<void> {
  if (chosen !== "off" && allowed() === "default") await Notification.requestPermission();
  localStorage.setItem(KEY, chosen);
}

export async function notify(call: Call): Promise<void> {
  const chosen = calls();
  if (chosen === "off" || isLooking() || Date.now() < last + EVERY) return;
  last = Date.now();
  const { title, body } = told(call, chosen);
  const options = { body, tag: call.groupId, icon: "/icon-192.png", data: { groupId: call.groupId } };
  const registration = await navigator.serviceWorker?.getRegistration();
  if (registration) await registration.showNotification(title, options);
  else new Notification(title, options);
}

function told({ sender, title, text, reason }: Call, chosen: Calls): { title: string; body: string } {
  if (chosen !== "text")
    return { title: "Conclave", body: reason === "invite" ? "You are invited." : "There is a message for you." };
  const where = reason === "direct" ? called(sender) : `${called(sender)} in ${inPassing(title)}`;
  if (reason === "invite") return { title: "Conclave", body: `${called(sender)} invites you to ${inPassing(title)}.` };
  return { title: where, body: text ? inPassing(text).slice(0, MOST_TOLD) : "A message that destroys itself" };
}
