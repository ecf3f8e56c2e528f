/** The whole page: chooses the screen, and shows dialogs and toasts above it. */

import { useEffect, useLayoutEffect } from "preact/hooks";
import { Conversation } from "./conversation";
import { Dialogs, Toast } from "./dialog";
import { Login } from "./login";
import { navigateTo, closeConversation, useOpenGroup } from "./place";
import { Sidebar } from "./sidebar";
import { attempt, closeAllDialogs, engine, useDialogs, useView } from "./store";

export function App() {
  const view = useView();
  const { phase, fault } = view;
  const hasDialog = useDialogs().length > 0;
  useLayoutEffect(() => {
    // Before the next screen can open a dialog of its own.
    if (phase !== "in") closeAllDialogs();
  }, [phase]);
  return (
    <>
      {phase === "in" ? <Chat /> : phase === "out" ? <Login /> : <StartScreen phase={phase} fault={fault} />}
      {(phase === "in" || phase === "out") && fault && (
        <p class="banner" role="alert">
          {fault}
        </p>
      )}
      <Dialogs />
      {!hasDialog && <Toast />}
    </>
  );
}

function StartScreen({ phase, fault }: { phase: "starting" | "taken" | "failed"; fault: string }) {
  const texts = {
    starting: "Loading…",
    taken: "Conclave is open in another tab. Close that tab to continue here.",
    failed: fault || "This browser does not allow the page to store data.",
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
  const openId = useOpenGroup();
  const group = view.groups.find((each) => each.groupId === openId);
  const isListed = !openId || group !== undefined;
  const isOnline = view.connection.state === "online";
  useEffect(() => {
    // The group was left or deleted, unless it was just created or joined and is in the next view.
    if (isListed || !isOnline) return;
    const timer = setTimeout(closeConversation, 5_000);
    return () => clearTimeout(timer);
  }, [isListed, isOnline]);
  useEffect(() => {
    // Asks the browser not to evict the keys when its disk is full.
    void navigator.storage.persist().catch(() => undefined);
  }, []);
  useEffect(() => {
    const unread = view.groups.reduce((sum, each) => sum + each.unread, 0);
    document.title = unread ? `(${unread}) Conclave` : "Conclave";
  }, [view.groups]);
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (!event.altKey || !step || document.querySelector("dialog[open]") || !view.groups.length) return;
      event.preventDefault();
      const at = view.groups.findIndex((each) => each.groupId === openId);
      const next = view.groups[(at + step + view.groups.length) % view.groups.length];
      if (next) navigateTo(next.groupId);
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [view.groups, openId]);
  const conversation = view.conversation?.groupId === openId ? view.conversation : null;
  const isPending = group !== undefined && !conversation;
  useEffect(() => {
    // A group that was just joined may have been opened before the engine listed it.
    if (!isPending) return;
    const timer = setInterval(() => void attempt(engine.open(openId)), 500);
    return () => clearInterval(timer);
  }, [isPending, openId]);
  return (
    <main class={group ? "chat has-open" : "chat"}>
      <Sidebar view={view} openId={openId} />
      {group ? (
        <Conversation key={group.groupId} view={view} group={group} conversation={conversation} />
      ) : (
        <section class="conversation none" aria-label="Conversation">
          <p>{openId ? "Loading…" : "Select a conversation, or start one with +."}</p>
        </section>
      )}
    </main>
  );
}
