/**
 * Keeps the shell of the page, so that it opens without a connection, and opens the page when a notification is
 * chosen. Nothing of the API passes through it, and so no message.
 */

declare const SHELL: string[];

interface Extendable {
  waitUntil(promise: Promise<unknown>): void;
}
interface Fetching {
  request: Request;
  respondWith(answer: Promise<Response>): void;
}
interface Chosen extends Extendable {
  notification: Notification;
}
interface Page {
  postMessage(message: unknown): void;
  focus(): Promise<Page>;
}
interface Worker {
  addEventListener(name: "install" | "activate", heard: (event: Extendable) => void): void;
  addEventListener(name: "fetch", heard: (event: Fetching) => void): void;
  addEventListener(name: "notificationclick", heard: (event: Chosen) => void): void;
  clients: {
    claim(): Promise<void>;
    matchAll(options: { type: "window" }): Promise<Page[]>;
    openWindow(url: string): Promise<Page | null>;
  };
}

const worker = self as unknown as Worker;
const CACHE = `shell ${SHELL.join(" ")}`;

worker.addEventListener("install", (event) => {
  event.waitUntil(
    caches.open(CACHE).then((cache) => cache.addAll(SHELL.map((each) => new Request(each, { cache: "no-cache" })))),
  );
});

worker.addEventListener("activate", (event) => {
  const tidy = async () => {
    for (const each of await caches.keys()) if (each !== CACHE) await caches.delete(each);
    await worker.clients.claim();
  };
  event.waitUntil(tidy());
});

worker.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  const { pathname, origin } = new URL(url);
  if (method !== "GET" || origin !== location.origin || !SHELL.includes(pathname)) return;
  // The page is asked for, so that a new one is there at once; the others never change.
  const fromCache = () => caches.match(pathname).then((found) => found ?? Response.error());
  if (pathname === "/") event.respondWith(fetch(event.request).catch(fromCache));
  else event.respondWith(caches.match(pathname).then((found) => found ?? fetch(event.request)));
});

worker.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const { groupId } = event.notification.data as { groupId: string };
  const show = async () => {
    const [page] = await worker.clients.matchAll({ type: "window" });
    if (!page) return worker.clients.openWindow("/");
    page.postMessage({ open: groupId });
    return page.focus();
  };
  event.waitUntil(show());
});
