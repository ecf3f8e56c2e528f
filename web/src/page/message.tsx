/** A message in the list, with its countdown and buttons. */

import { Component } from "preact";
import { useState } from "preact/hooks";
import type { Message } from "../engine/api";
import { Icon } from "./icons";
import { attempt, engine } from "./store";
import { displayName, truncate, sanitize, parseText } from "./text";
import { dateAndTime, remainingText, timeOfDay, useNow, durationText } from "./time";

interface Props {
  message: Message;
  /** It follows a message of the same sender shortly before: the name is not repeated. */
  isContinued: boolean;
  /** It was opened from a search. */
  isHighlighted: boolean;
  /** The Tab key reaches this message. */
  isFocusable: boolean;
  self: string;
  /** The members' names in lower case. */
  names: ReadonlySet<string>;
  onReply: (message: Message) => void;
  onMenu: (message: Message) => void;
}

const COMPARED_FIELDS = [
  "number",
  "text",
  "omitted",
  "sender",
  "goneAt",
  "isUnread",
  "isMention",
  "selfDestructSeconds",
] as const satisfies readonly (keyof Message)[];

const COMPARED_PROPS = [
  "isContinued",
  "isHighlighted",
  "isFocusable",
  "self",
  "names",
  "onReply",
  "onMenu",
] as const satisfies readonly (keyof Props)[];

/** Rendered again only if a compared field has changed: each view has new objects. */
export class MessageRow extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { props } = this;
    return (
      COMPARED_FIELDS.some((each) => props.message[each] !== next.message[each]) ||
      COMPARED_PROPS.some((each) => props[each] !== next[each])
    );
  }

  override render({ message, isContinued, isHighlighted, isFocusable, self, names, onReply, onMenu }: Props) {
    const { number, isOwn, sender, createdAt, goneAt, isMention, isUnread, text, omitted } = message;
    const name = isOwn ? "You" : sender ? displayName(sender) : "Former member";
    const classes = [
      "message",
      isOwn && "own",
      isContinued && "continued",
      isHighlighted && "marked",
      isMention && "for-me",
    ];
    return (
      <li
        id={`m${number}`}
        class={classes.filter(Boolean).join(" ")}
        data-number={number}
        data-unread={isUnread ? "" : undefined}
        tabIndex={isFocusable ? 0 : -1}
      >
        <div class="bubble">
          <p class={isContinued || isOwn ? "sr" : "sender"}>
            <bdi>{name}</bdi>
          </p>
          <Text number={number} text={text} omitted={omitted} self={self} names={names} />
          <p class="foot">
            <time dateTime={new Date(Math.min(createdAt, 8.64e12) * 1000).toISOString()} title={dateAndTime(createdAt)}>
              {timeOfDay(createdAt)}
            </time>
            <Countdown message={message} goneAt={goneAt} />
          </p>
        </div>
        <div class="tools">
          {text !== null && (
            <button
              class="icon"
              type="button"
              tabIndex={isFocusable ? 0 : -1}
              aria-label={`Reply to ${name}`}
              onClick={() => onReply(message)}
            >
              <Icon name="reply" />
            </button>
          )}
          <button
            class="icon"
            type="button"
            tabIndex={isFocusable ? 0 : -1}
            aria-label={`More actions for the message from ${name}`}
            onClick={() => onMenu(message)}
          >
            <Icon name="more" />
          </button>
        </div>
      </li>
    );
  }
}

/** `omitted`: how many characters `text` lacks. */
interface TextProps {
  number: number;
  text: string | null;
  omitted: number;
  self: string;
  names: ReadonlySet<string>;
}

export function Text({ number, text, omitted, self, names }: TextProps) {
  const [whole, setWhole] = useState<string | null>(null);
  if (text === null) return <p class="text muted">This message cannot be read on this device.</p>;
  const { shown, omitted: hidden } = whole !== null ? { shown: whole, omitted: 0 } : truncate(text);
  const left = whole !== null ? 0 : hidden + omitted;
  const showAll = async () => setWhole(omitted > 0 ? await engine.fullText(number) : text);
  return (
    <>
      <div class="text" dir="auto">
        {parseText(sanitize(shown), self, names).map((part, at) => {
          if (part.kind === "link")
            return (
              <a key={at} href={part.href} target="_blank" rel="noopener noreferrer nofollow">
                {part.text}
              </a>
            );
          if (part.kind === "quote")
            return (
              <span key={at} class="quote">
                {part.text.slice(2).trimEnd()}
              </span>
            );
          return part.kind === "text" ? (
            part.text
          ) : (
            <span key={at} class={part.kind}>
              {part.text}
            </span>
          );
        })}
      </div>
      {left > 0 && (
        <button class="link" type="button" onClick={() => void attempt(showAll())}>
          {`Show ${left.toLocaleString("en")} more characters`}
        </button>
      )}
    </>
  );
}

/** The time left; for a self-destructing message that was not seen, its timer. */
function Countdown({ message, goneAt }: { message: Message; goneAt: number | null }) {
  const { selfDestructSeconds, createdAt } = message;
  if (goneAt === null)
    return selfDestructSeconds ? (
      <span class="left">
        <Icon name="flame" />
        <span class="sr">disappears after reading, in </span>
        {durationText(selfDestructSeconds)}
      </span>
    ) : null;
  const total = selfDestructSeconds || goneAt - createdAt;
  return <TimeLeft goneAt={goneAt} total={total} hasTimer={selfDestructSeconds > 0} />;
}

function TimeLeft({ goneAt, total, hasTimer }: { goneAt: number; total: number; hasTimer: boolean }) {
  const left = Math.max(0, goneAt - useNow());
  const stage = left <= 10 ? "last" : left * 4 <= total ? "late" : "early";
  return (
    <span class={`left ${stage}`}>
      {hasTimer ? <Icon name="flame" /> : <CountdownRing share={Math.min(1, left / Math.max(1, total))} />}
      <span class="sr">disappears in </span>
      {remainingText(left)}
    </span>
  );
}

const CIRCUMFERENCE = 2 * Math.PI * 5;

function CountdownRing({ share }: { share: number }) {
  return (
    <svg class="fuse" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true" focusable="false">
      <circle class="track" cx="7" cy="7" r="5" />
      <circle class="rest" cx="7" cy="7" r="5" stroke-dasharray={`${share * CIRCUMFERENCE} ${CIRCUMFERENCE}`} />
    </svg>
  );
}
