/** Browser notifications. By default they contain no names and no text, since a device may keep them. */

import type { Alert } from "../engine/api";
import { isPageActive } from "./seen";
import { displayName, singleLine } from "./text";

export type NotificationMode = "off" | "quiet" | "text";

const STORAGE_KEY = "calls";

/** At most one notification in 5 seconds, so that many messages after a reconnect cause one. */
const MIN_INTERVAL_MS = 5_000;

const MAX_TEXT = 100;

let lastShownAt = 0;

export function notificationMode(): NotificationMode {
  const mode = localStorage.getItem(STORAGE_KEY);
  return permission() === "granted" && (mode === "quiet" || mode === "text") ? mode : "off";
}

export function permission(): NotificationPermission {
  return "Notification" in window ? Notification.permission : "denied";
}

/** Stores the mode, and asks for the browser's permission if necessary. */
export async function setNotificationMode(mode: NotificationMode): Promise<void> {
  if (mode !== "off" && permission() === "default") await Notification.requestPermission();
  localStorage.setItem(STORAGE_KEY, mode);
}

export async function notify(alert: Alert): Promise<void> {
  const mode = notificationMode();
  if (mode === "off" || isPageActive() || Date.now() < lastShownAt + MIN_INTERVAL_MS) return;
  lastShownAt = Date.now();
  const { title, body } = notificationText(alert, mode);
  const options = { body, tag: alert.groupId, icon: "/icon-192.png", data: { groupId: alert.groupId } };
  const registration = await navigator.serviceWorker?.getRegistration();
  if (registration) await registration.showNotification(title, options);
  else new Notification(title, options);
}

function notificationText(alert: Alert, mode: NotificationMode): { title: string; body: string } {
  const { sender, title, text, reason } = alert;
  if (mode !== "text") return { title: "Conclave", body: reason === "invite" ? "New invite" : "New message" };
  const [name, group] = [displayName(sender), singleLine(title)];
  if (reason === "invite") return { title: "Conclave", body: `${name} invited you to ${group}.` };
  return { title: reason === "direct" ? name : `${name} in ${group}`, body: text ? singleLine(text).slice(0, MAX_TEXT) : "Self-destructing message" };
}
