/** The message list: a window that moves with the scroll position. Messages disappear in the second they expire. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Conversation, Group, Message, Notice, Sending, View } from "../engine/api";
import { Icon } from "./icons";
import { MessageMenu } from "./menu";
import { MessageRow } from "./message";
import { useSeen } from "./seen";
import { Action } from "./dialog";
import { attempt, engine, openDialog } from "./store";
import { displayName, sanitize, singleLine } from "./text";
import { day, isSameDay, timeOfDay, useNextExpiry } from "./time";
import { useScrollPosition } from "./scrolling";

/** Messages of one sender within 5 minutes are shown as a block. */
const BLOCK_SECONDS = 300;

interface Props {
  view: View;
  group: Group;
  conversation: Conversation;
  onReply: (message: Message) => void;
  children?: ComponentChildren;
}

export function Timeline({ view, group, conversation, onReply, children }: Props) {
  const { messages, hasEarlier, hasLater, unreadFrom, around, sending, notices } = conversation;
  const second = useNextExpiry(messages.map((each) => each.goneAt));
  const shown = messages.filter((each) => each.goneAt === null || each.goneAt > second);
  const list = useRef<HTMLDivElement>(null);
  const [current, setCurrent] = useState<number | null>(null);
  const self = view.account?.username ?? "";
  const isOnline = view.connection.state === "online";
  const usernames = group.members.map((each) => each.username.toLowerCase()).join(" ");
  const names = useMemo(() => new Set(usernames.split(" ")), [usernames]);
  const scroll = useScrollPosition(list, conversation, shown);
  useSeen(list, group.groupId, shown);

  const reply = useCallback((message: Message) => {
    onReply(message);
    document.querySelector<HTMLElement>("textarea")?.focus();
  }, []);
  const menu = useCallback(
    (message: Message) => openDialog(() => <MessageMenu message={message} group={group} onReply={reply} />),
    [group.groupId, group.role],
  );

  const focusable = shown.some((each) => each.number === current) ? current : (shown.at(-1)?.number ?? null);
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowUp: -1, ArrowDown: 1, Home: -shown.length, End: shown.length };
    const step = steps[event.key];
    if (step === undefined || !(event.target as Element).matches("li.message")) return;
    event.preventDefault();
    const at = shown.findIndex((each) => each.number === focusable);
    const next = shown[Math.max(0, Math.min(shown.length - 1, at + step))];
    if (!next) return;
    setCurrent(next.number);
    document.getElementById(`m${next.number}`)?.focus();
  };

  return (
    <div class="around-timeline">
      <div class="timeline" ref={list} onScroll={scroll.onScroll} onKeyDown={onKeyDown}>
        {children}
        <ol aria-label="Messages">
          {hasEarlier && (
            <li class="edge" aria-hidden="true">
              …
            </li>
          )}
          {rows(shown, notices, hasEarlier, hasLater).map((row) => {
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
                  <span>New</span>
                  {group.unread > 0 && (
                    <button class="link" type="button" onClick={() => attempt(engine.markAllRead(group.groupId))}>
                      Mark all as read
                    </button>
                  )}
                </li>
              ),
              <MessageRow
                key={message.number}
                message={message}
                isContinued={row.isContinued && message.number !== unreadFrom}
                isHighlighted={message.number === around}
                isFocusable={message.number === focusable}
                self={self}
                names={names}
                onReply={reply}
                onMenu={menu}
              />,
            ];
          })}
          {!hasLater &&
            sending.map((each) => (
              <SendingRow key={each.sendId} sending={each} groupId={group.groupId} isOnline={isOnline} />
            ))}
        </ol>
      </div>
      {(hasLater || !scroll.isAtEnd) && shown.length > 0 && (
        <button class="to-end icon" type="button" aria-label="Go to the newest messages" onClick={scroll.scrollToEnd}>
          <Icon name="down" />
        </button>
      )}
      <Announcer messages={hasLater ? [] : shown} />
    </div>
  );
}

type TimelineRow =
  | { kind: "day"; text: string }
  | { kind: "notice"; at: number; notice: Notice }
  | { kind: "message"; message: Message; isContinued: boolean };

/** Inserts days and notices between the messages, by time. */
function rows(messages: readonly Message[], notices: readonly Notice[], hasEarlier: boolean, hasLater: boolean) {
  const out: TimelineRow[] = [];
  const first = hasEarlier ? (messages[0]?.createdAt ?? 0) : 0;
  const last = hasLater ? (messages.at(-1)?.createdAt ?? 0) : Infinity;
  const pending = notices
    .map((notice, at) => ({ kind: "notice" as const, at, notice }))
    .filter(({ notice }) => notice.at >= first && notice.at <= last);
  let before: Message | null = null;
  let today: number | null = null;
  for (const message of messages) {
    while (pending[0] && pending[0].notice.at < message.createdAt) {
      out.push(pending.shift()!);
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
      message.createdAt - before.createdAt < BLOCK_SECONDS;
    out.push({ kind: "message", message, isContinued });
    before = message;
  }
  return [...out, ...pending];
}

function NoticeRow({ notice }: { notice: Notice }) {
  return (
    <li class={`notice ${notice.kind}`}>
      <span>
        {notice.kind !== "info" && <Icon name="warning" />}
        {sanitize(notice.text)} · <time>{timeOfDay(notice.at)}</time>
      </span>
    </li>
  );
}

const STATES = { waiting: "Sending…", held: "Waiting for your decision", failed: "Not sent" };

function SendingRow({ sending, groupId, isOnline }: { sending: Sending; groupId: string; isOnline: boolean }) {
  const { sendId, text, state, why } = sending;
  return (
    <li class={`message own sending ${state}`}>
      <div class="bubble">
        <div class="text" dir="auto">
          {sanitize(text)}
        </div>
        <p class="foot" role="status">
          {state === "waiting" && !isOnline ? "Waiting for connection" : STATES[state]}
          {why && `: ${singleLine(why)}`}
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

/** Announces new messages to screen readers while the newest messages are shown. */
function Announcer({ messages }: { messages: readonly Message[] }) {
  const [{ number, text }, setAnnounced] = useState({ number: 0, text: "" });
  const known = useRef<number | null>(null);
  const newest = messages.at(-1);
  useEffect(() => {
    if (known.current !== null && newest && newest.number > known.current && !newest.isOwn)
      setAnnounced({
        number: newest.number,
        text: newest.selfDestructSeconds
          ? "Self-destructing message"
          : `${displayName(newest.sender)}: ${newest.text ?? ""}`,
      });
    known.current = newest?.number ?? known.current ?? 0;
  }, [newest?.number]);
  useLayoutEffect(() => {
    if (!text) return;
    const timer = setTimeout(() => setAnnounced({ number: 0, text: "" }), 5_000); // the text must not stay in the page
    return () => clearTimeout(timer);
  }, [number]);
  return (
    <div class="sr" role="status">
      {messages.some((each) => each.number === number) ? sanitize(text) : ""}
    </div>
  );
}
