/**
 * Caches the page's own files, so that it opens without a connection, and opens the page when a notification is
 * clicked. API requests, and so messages, do not pass through it.
 */

declare const SHELL: string[];

interface ExtendableEvent {
  waitUntil(promise: Promise<unknown>): void;
}
interface FetchEvent {
  request: Request;
  respondWith(answer: Promise<Response>): void;
}
interface NotificationEvent extends ExtendableEvent {
  notification: Notification;
}
interface Page {
  postMessage(message: unknown): void;
  focus(): Promise<Page>;
}
interface Worker {
  addEventListener(name: "install" | "activate", listener: (event: ExtendableEvent) => void): void;
  addEventListener(name: "fetch", listener: (event: FetchEvent) => void): void;
  addEventListener(name: "notificationclick", listener: (event: NotificationEvent) => void): void;
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
  const deleteOldCaches = async () => {
    for (const each of await caches.keys()) if (each !== CACHE) await caches.delete(each);
    await worker.clients.claim();
  };
  event.waitUntil(deleteOldCaches());
});

worker.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  const { pathname, origin } = new URL(url);
  if (method !== "GET" || origin !== location.origin || !SHELL.includes(pathname)) return;
  // The page is fetched first, so that a new version is used at once. The other files have hashes in their names.
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
