/** Starts the page: connects it to the Worker, and forwards events of the browser. */

import { render } from "preact";
import type { Engine } from "../engine/api";
import { connect } from "../engine/client";
import { App } from "./app";
import { notify } from "./notify";
import { navigateTo } from "./place";
import { engine, setEngine, setView } from "./store";
import "./style.css";

declare const WORKER_URL: string;

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { createScriptURL(url: string): string },
  ): { createScriptURL(url: string): unknown };
}
const { trustedTypes } = window as { trustedTypes?: TrustedTypes };

/** The only script URLs that the page may load, by Trusted Types. */
const scripts = trustedTypes?.createPolicy("conclave", {
  createScriptURL(url) {
    if (!/^\/(worker-[0-9a-f]+|service-worker)\.js(\?auth_header=[\w!#$%&'*+.^|~-]+)?$/.test(url))
      throw new TypeError(url);
    return url;
  },
});
const script = (url: string) => (scripts ? scripts.createScriptURL(url) : url) as string;

/** Returns why the page cannot run in this browser; "" if it can. */
function unsupportedReason(): string {
  if (!isSecureContext)
    return "Encryption needs HTTPS. Open this page with https://, or as localhost on the server's own machine.";
  const has = "locks" in navigator && "storage" in navigator && "getDirectory" in navigator.storage;
  return has && "serviceWorker" in navigator
    ? ""
    : "This browser is too old, or its private window cannot store data.";
}

function start(): void {
  const header = document.querySelector<HTMLMetaElement>("meta[name=auth-header]")?.content ?? "Authorization";
  const url = header === "Authorization" ? WORKER_URL : `${WORKER_URL}?auth_header=${encodeURIComponent(header)}`;
  const connected = connect(script(url), setView, (alert) => void notify(alert));
  setEngine(connected.engine as Engine);
  render(<App />, document.body);
  addEventListener("online", () => void engine.reconnect().catch(() => undefined));
  document.addEventListener("visibilitychange", () => document.hidden || void engine.reconnect().catch(() => undefined));
  void navigator.serviceWorker.register(script("/service-worker.js")).catch(() => undefined); // optional
  navigator.serviceWorker.addEventListener(
    "message",
    ({ data }: MessageEvent<{ open?: string }>) => data.open && navigateTo(data.open),
  );
}

/** Shrinks the page to the space above the on-screen keyboard, in browsers that do not. */
function fitToKeyboard(): void {
  const screen = window.visualViewport;
  const set = () => document.documentElement.style.setProperty("--height", `${screen!.height}px`);
  screen?.addEventListener("resize", set);
}

const fault = unsupportedReason();
if (fault)
  render(
    <main class="entry">
      <div>
        <h1>Conclave</h1>
        <p role="alert">{fault}</p>
      </div>
    </main>,
    document.body,
  );
else start();
fitToKeyboard();
