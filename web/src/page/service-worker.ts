/** Keeps the shell of the page, so that it opens without a connection. Never messages. */

declare const SHELL: string[];

addEventListener("install", (event) => {
  (event as unknown as { waitUntil(promise: Promise<unknown>): void }).waitUntil(
    caches.open(SHELL.join()).then((cache) => cache.addAll(SHELL)),
  );
});
