/** The page as a whole: which screen is shown. */

import { useEffect, useLayoutEffect } from "preact/hooks";
import { Conversation } from "./conversation";
import { Dialogs } from "./dialog";
import { Icon } from "./icons";
import { Login } from "./login";
import { choose, forget, usePlace } from "./place";
import { Sidebar } from "./sidebar";
import { attempt, closeDialogs, engine, hush, useSaid, useView } from "./store";

export function App() {
  const view = useView();
  const { phase, fault } = view;
  useLayoutEffect(() => {
    // At once: a dialog that is opened from the next screen stays.
    if (phase !== "in") closeDialogs();
  }, [phase]);
  return (
    <>
      {phase === "in" ? <Chat /> : phase === "out" ? <Login /> : <Waiting phase={phase} fault={fault} />}
      {(phase === "in" || phase === "out") && fault && (
        <p class="banner" role="alert">
          {fault}
        </p>
      )}
      <Dialogs />
      <Toast />
    </>
  );
}

function Waiting({ phase, fault }: { phase: "starting" | "taken" | "failed"; fault: string }) {
  const texts = {
    starting: "Just a moment…",
    taken: "Conclave is open in another tab of this browser. It goes on here once that is closed.",
    failed: fault || "This browser does not let the page keep anything.",
  };
  return (
    <main class="entry">
      <div>
        <img src="/icon.svg" alt="" width="64" height="64" />
        <h1>Conclave</h1>
        <p role="status">{texts[phase]}</p>
      </div>
    </main>
  );
}

function Chat() {
  const view = useView();
  const openId = usePlace();
  const group = view.groups.find((each) => each.groupId === openId);
  const isKnown = !openId || group !== undefined;
  const isRead = view.connection.state === "online";
  useEffect(() => {
    // It was left, or deleted. One that is being made or joined comes with the next view.
    if (isKnown || !isRead) return;
    const timer = setTimeout(forget, 5_000);
    return () => clearTimeout(timer);
  }, [isKnown, isRead]);
  useEffect(() => {
    // Otherwise the browser may throw the keys away where its disk is full.
    void navigator.storage.persist().catch(() => undefined);
  }, []);
  useEffect(() => {
    const unread = view.groups.reduce((sum, each) => sum + each.unread, 0);
    document.title = unread ? `(${unread}) Conclave` : "Conclave";
  }, [view.groups]);
  useEffect(() => {
    const walk = (event: KeyboardEvent) => {
      const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (!event.altKey || !step || document.querySelector("dialog[open]") || !view.groups.length) return;
      event.preventDefault();
      const at = view.groups.findIndex((each) => each.groupId === openId);
      const next = view.groups[(at + step + view.groups.length) % view.groups.length];
      if (next) choose(next.groupId);
    };
    addEventListener("keydown", walk);
    return () => removeEventListener("keydown", walk);
  }, [view.groups, openId]);
  const conversation = view.conversation?.groupId === openId ? view.conversation : null;
  const isMissing = group !== undefined && !conversation;
  useEffect(() => {
    // It was chosen before the engine had it: a group that was just joined.
    if (!isMissing) return;
    const timer = setInterval(() => void attempt(engine.open(openId)), 500);
    return () => clearInterval(timer);
  }, [isMissing, openId]);
  return (
    <main class={group ? "chat has-open" : "chat"}>
      <Sidebar view={view} openId={openId} />
      {group ? (
        <Conversation key={group.groupId} view={view} group={group} conversation={conversation} />
      ) : (
        <section class="conversation none" aria-label="Conversation">
          <p>{openId ? "Just a moment…" : "Choose a conversation, or begin one with +."}</p>
        </section>
      )}
    </main>
  );
}

function Toast() {
  const said = useSaid();
  return (
    <div class="toasts" role={said?.isFault ? "alert" : "status"}>
      {said && (
        <div class={said.isFault ? "toast fault" : "toast"}>
          <p>{said.text}</p>
          <button class="icon" type="button" aria-label="Close" onClick={hush}>
            <Icon name="close" />
          </button>
        </div>
      )}
    </div>
  );
}
