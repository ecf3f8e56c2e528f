/** The page: shows the view of the engine, and tells it what the browser tells. */

import { render } from "preact";
import type { Engine } from "../engine/api";
import { connect } from "../engine/client";
import { App } from "./app";
import { notify } from "./notify";
import { choose } from "./place";
import { engine, takeEngine, takeView } from "./store";
import "./style.css";

declare const WORKER_URL: string;

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { createScriptURL(url: string): string },
  ): { createScriptURL(url: string): unknown };
}
const { trustedTypes } = window as { trustedTypes?: TrustedTypes };

/** The browser takes scripts by names that this policy lets through, and no others. */
const scripts = trustedTypes?.createPolicy("conclave", {
  createScriptURL(url) {
    if (!/^\/(worker-[0-9a-f]+|service-worker)\.js(\?auth_header=[\w!#$%&'*+.^|~-]+)?$/.test(url))
      throw new TypeError(url);
    return url;
  },
});
const script = (url: string) => (scripts ? scripts.createScriptURL(url) : url) as string;

/** Why the page cannot work here; "": it can. */
function missing(): string {
  if (!isSecureContext)
    return "By plain HTTP a browser offers no encryption: open this page by https://, or on the server's own machine as localhost.";
  const has = "locks" in navigator && "storage" in navigator && "getDirectory" in navigator.storage;
  return has && "serviceWorker" in navigator
    ? ""
    : "This browser is too old, or in a private window that keeps nothing.";
}

function begin(): void {
  const header = document.querySelector<HTMLMetaElement>("meta[name=auth-header]")?.content ?? "Authorization";
  const url = header === "Authorization" ? WORKER_URL : `${WORKER_URL}?auth_header=${encodeURIComponent(header)}`;
  const connected = connect(script(url), takeView, (call) => void notify(call));
  takeEngine(connected.engine as Engine);
  render(<App />, document.body);
  addEventListener("online", () => void engine.wake().catch(() => undefined));
  document.addEventListener("visibilitychange", () => document.hidden || void engine.wake().catch(() => undefined));
  void navigator.serviceWorker.register(script("/service-worker.js")).catch(() => undefined); // it works without
  navigator.serviceWorker.addEventListener(
    "message",
    ({ data }: MessageEvent<{ open?: string }>) => data.open && choose(data.open),
  );
}

/** Where the keyboard on the screen does not make the page smaller, it is made so here. */
function fit(): void {
  const screen = window.visualViewport;
  const set = () => document.documentElement.style.setProperty("--height", `${screen!.height}px`);
  screen?.addEventListener("resize", set);
}

const fault = missing();
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
else begin();
fit();
