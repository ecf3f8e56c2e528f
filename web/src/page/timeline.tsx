/** The list of messages: a window that moves with the scroll, keeps its place, and loses what is gone at its second. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Conversation, Group, Message, Notice, Sending, View } from "../engine/api";
import { Icon } from "./icons";
import { MessageMenu } from "./menu";
import { Row } from "./message";
import { useSeen } from "./seen";
import { Action } from "./dialog";
import { attempt, engine, openDialog } from "./store";
import { called, harmless, inPassing } from "./text";
import { day, isSameDay, timeOfDay, useMoment } from "./time";
import { usePlaceInList } from "./scrolling";

/** Messages of one sender within 5 minutes stand together. */
const TOGETHER_SECONDS = 300;

interface Props {
  view: View;
  group: Group;
  conversation: Conversation;
  onReply: (message: Message) => void;
  children?: ComponentChildren;
}

export function Timeline({ view, group, conversation, onReply, children }: Props) {
  const { messages, hasEarlier, hasLater, unreadFrom, around, sending, notices } = conversation;
  const moment = useMoment(messages.map((each) => each.goneAt));
  const here = messages.filter((each) => each.goneAt === null || each.goneAt > moment);
  const list = useRef<HTMLDivElement>(null);
  const [current, setCurrent] = useState<number | null>(null);
  const self = view.account?.username ?? "";
  const joined = group.members.map((each) => each.username.toLowerCase()).join(" ");
  const names = useMemo(() => new Set(joined.split(" ")), [joined]);
  const place = usePlaceInList(list, conversation, here);
  useSeen(list, group.groupId, here);

  const reply = useCallback((message: Message) => {
    onReply(message);
    document.querySelector<HTMLElement>("textarea")?.focus();
  }, []);
  const menu = useCallback(
    (message: Message) => openDialog(() => <MessageMenu message={message} group={group} onReply={reply} />),
    [group.groupId, group.role],
  );

  const reached = here.some((each) => each.number === current) ? current : (here.at(-1)?.number ?? null);
  const walk = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowUp: -1, ArrowDown: 1, Home: -here.length, End: here.length };
    const step = steps[event.key];
    if (step === undefined || !(event.target as Element).matches("li.message")) return;
    event.preventDefault();
    const at = here.findIndex((each) => each.number === reached);
    const next = here[Math.max(0, Math.min(here.length - 1, at + step))];
    if (!next) return;
    setCurrent(next.number);
    document.getElementById(`m${next.number}`)?.focus();
  };

  return (
    <div class="around-timeline">
      <div class="timeline" ref={list} onScroll={place.scrolled} onKeyDown={walk}>
        {children}
        <ol aria-label="Messages">
          {hasEarlier && (
            <li class="edge" aria-hidden="true">
              …
            </li>
          )}
          {rows(here, notices, hasEarlier, hasLater).map((row) => {
            if (row.kind === "day")
              return (
                <li key={`d${row.text}`} class="day">
                  <span>{row.text}</span>
                </li>
              );
            if (row.kind === "notice") return <NoticeRow key={`n${row.at}`} notice={row.notice} />;
            const { message } = row;
            return [
              message.number === unreadFrom && !message.isOwn && (
                <li key="new" class="new">
                  <span>new</span>
                  {group.unread > 0 && (
                    <button class="link" type="button" onClick={() => attempt(engine.readAll(group.groupId))}>
                      Mark all as read
                    </button>
                  )}
                </li>
              ),
              <Row
                key={message.number}
                message={message}
                isContinued={row.isContinued && message.number !== unreadFrom}
                isMarked={message.number === around}
                isCurrent={message.number === reached}
                self={self}
                names={names}
                onReply={reply}
                onMenu={menu}
              />,
            ];
          })}
          {!hasLater && sending.map((each) => <SendingRow key={each.sendId} sending={each} groupId={group.groupId} />)}
        </ol>
      </div>
      {(hasLater || !place.isAtEnd) && here.length > 0 && (
        <button class="to-end icon" type="button" aria-label="To the newest messages" onClick={place.toEnd}>
          <Icon name="down" />
        </button>
      )}
      <Announcer messages={hasLater ? [] : here} />
    </div>
  );
}

type TimelineRow =
  | { kind: "day"; text: string }
  | { kind: "notice"; at: number; notice: Notice }
  | { kind: "message"; message: Message; isContinued: boolean };

/** Puts days and notices between the messages, by their times. */
function rows(messages: readonly Message[], notices: readonly Notice[], hasEarlier: boolean, hasLater: boolean) {
  const out: TimelineRow[] = [];
  const first = hasEarlier ? (messages[0]?.createdAt ?? 0) : 0;
  const last = hasLater ? (messages.at(-1)?.createdAt ?? 0) : Infinity;
  const shown = notices.map((notice, at) => ({ kind: "notice" as const, at, notice }));
  const waiting = shown.filter(({ notice }) => notice.at >= first && notice.at <= last);
  let before: Message | null = null;
  let today: number | null = null;
  for (const message of messages) {
    while (waiting[0] && waiting[0].notice.at < message.createdAt) {
      out.push(waiting.shift()!);
      before = null;
    }
    if (today === null || !isSameDay(today, message.createdAt)) {
      out.push({ kind: "day", text: day(message.createdAt) });
      before = null;
    }
    today = message.createdAt;
    const isContinued =
      before !== null &&
      before.senderId === message.senderId &&
      message.createdAt - before.createdAt < TOGETHER_SECONDS;
    out.push({ kind: "message", message, isContinued });
    before = message;
  }
  return [...out, ...waiting];
}

function NoticeRow({ notice }: { notice: Notice }) {
  return (
    <li class={`notice ${notice.kind}`}>
      <span>
        {notice.kind !== "info" && <Icon name="warning" />}
        {harmless(notice.text)} · <time>{timeOfDay(notice.at)}</time>
      </span>
    </li>
  );
}

const STATES = { waiting: "Waits for the connection", held: "Waits for your decision", failed: "Was not sent" };

function SendingRow({ sending, groupId }: { sending: Sending; groupId: string }) {
  const { sendId, text, state, why } = sending;
  return (
    <li class={`message own sending ${state}`}>
      <div class="bubble">
        <div class="text" dir="auto">
          {harmless(text)}
        </div>
        <p class="foot" role="status">
          {STATES[state]}
          {why && `: ${inPassing(why)}`}
        </p>
        <div class="actions">
          {state === "failed" && (
            <Action class="small" act={() => engine.retry(groupId)}>
              Try again
            </Action>
          )}
          <Action class="small" act={() => engine.discard(groupId, sendId)}>
            Discard
          </Action>
        </div>
      </div>
    </li>
  );
}

/** Reads to screen readers what arrives while the newest messages are shown. */
function Announcer({ messages }: { messages: readonly Message[] }) {
  const [{ number, text }, setSaid] = useState({ number: 0, text: "" });
  const known = useRef<number | null>(null);
  const newest = messages.at(-1);
  useEffect(() => {
    if (known.current !== null && newest && newest.number > known.current && !newest.isOwn)
      setSaid({
        number: newest.number,
        text: newest.selfDestructSeconds
          ? "A message that destroys itself"
          : `${called(newest.sender)}: ${newest.text ?? ""}`,
      });
    known.current = newest?.number ?? known.current ?? 0;
  }, [newest?.number]);
  useLayoutEffect(() => {
    if (!text) return;
    const timer = setTimeout(() => setSaid({ number: 0, text: "" }), 5_000); // what was said does not stay here either
    return () => clearTimeout(timer);
  }, [number]);
  return (
    <div class="sr" role="status">
      {messages.some((each) => each.number === number) ? harmless(text) : ""}
    </div>
  );
}
