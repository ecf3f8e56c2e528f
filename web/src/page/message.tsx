/** A message as it stands in the list, and what can be done with it. */

import { Component } from "preact";
import { useState } from "preact/hooks";
import type { Message } from "../engine/api";
import { Icon } from "./icons";
import { attempt, engine } from "./store";
import { called, cut, harmless, parts } from "./text";
import { dateAndTime, remaining, timeOfDay, useNow, words } from "./time";

interface Props {
  message: Message;
  /** The one before is of the same sender, of the same time. */
  isContinued: boolean;
  /** Search has led to it. */
  isMarked: boolean;
  /** The one in the list that the Tab key reaches. */
  isCurrent: boolean;
  self: string;
  /** The members' names in lower case. */
  names: ReadonlySet<string>;
  onReply: (message: Message) => void;
  onMenu: (message: Message) => void;
}

const SAME = [
  "number",
  "text",
  "left",
  "sender",
  "goneAt",
  "isUnread",
  "isMention",
  "selfDestructSeconds",
] as const satisfies readonly (keyof Message)[];

const OTHERS = [
  "isContinued",
  "isMarked",
  "isCurrent",
  "self",
  "names",
  "onReply",
  "onMenu",
] as const satisfies readonly (keyof Props)[];

/** Rendered anew only when what it shows has changed: the engine's views are new objects each time. */
export class Row extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { props } = this;
    return (
      SAME.some((each) => props.message[each] !== next.message[each]) ||
      OTHERS.some((each) => props[each] !== next[each])
    );
  }

  override render({ message, isContinued, isMarked, isCurrent, self, names, onReply, onMenu }: Props) {
    const { number, isOwn, sender, createdAt, goneAt, isMention, isUnread, text, left } = message;
    const name = isOwn ? "You" : sender ? called(sender) : "Somebody who has left";
    const classes = [
      "message",
      isOwn && "own",
      isContinued && "continued",
      isMarked && "marked",
      isMention && "for-me",
    ];
    return (
      <li
        id={`m${number}`}
        class={classes.filter(Boolean).join(" ")}
        data-number={number}
        data-unread={isUnread ? "" : undefined}
        tabIndex={isCurrent ? 0 : -1}
      >
        <div class="bubble">
          <p class={isContinued || isOwn ? "sr" : "sender"}>
            <bdi>{name}</bdi>
          </p>
          <Text number={number} text={text} more={left} self={self} names={names} />
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
              tabIndex={isCurrent ? 0 : -1}
              aria-label={`Reply to ${name}`}
              onClick={() => onReply(message)}
            >
              <Icon name="reply" />
            </button>
          )}
          <button
            class="icon"
            type="button"
            tabIndex={isCurrent ? 0 : -1}
            aria-label={`More for the message of ${name}`}
            onClick={() => onMenu(message)}
          >
            <Icon name="more" />
          </button>
        </div>
      </li>
    );
  }
}

/** `more`: characters that the text has beyond `text`. */
interface TextProps {
  number: number;
  text: string | null;
  more: number;
  self: string;
  names: ReadonlySet<string>;
}

export function Text({ number, text, more, self, names }: TextProps) {
  const [whole, setWhole] = useState<string | null>(null);
  if (text === null) return <p class="text muted">This message cannot be read on this device.</p>;
  const { shown, left: cutOff } = whole !== null ? { shown: whole, left: 0 } : cut(text);
  const left = whole !== null ? 0 : cutOff + more;
  const showAll = async () => setWhole(more > 0 ? await engine.whole(number) : text);
  return (
    <>
      <div class="text" dir="auto">
        {parts(harmless(shown), self, names).map((part, at) => {
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

/** How long it is still here; before a self-destructing one was seen, how long it will be. */
function Countdown({ message, goneAt }: { message: Message; goneAt: number | null }) {
  const { selfDestructSeconds, createdAt } = message;
  if (goneAt === null)
    return selfDestructSeconds ? (
      <span class="left">
        <Icon name="flame" />
        <span class="sr">goes after it was read, after </span>
        {words(selfDestructSeconds)}
      </span>
    ) : null;
  return <Left goneAt={goneAt} whole={selfDestructSeconds || goneAt - createdAt} isBurning={selfDestructSeconds > 0} />;
}

function Left({ goneAt, whole, isBurning }: { goneAt: number; whole: number; isBurning: boolean }) {
  const left = Math.max(0, goneAt - useNow());
  const stage = left <= 10 ? "last" : left * 4 <= whole ? "late" : "early";
  return (
    <span class={`left ${stage}`}>
      {isBurning ? <Icon name="flame" /> : <Fuse share={Math.min(1, left / Math.max(1, whole))} />}
      <span class="sr">goes in </span>
      {remaining(left)}
    </span>
  );
}

const AROUND = 2 * Math.PI * 5;

/** A circle that empties. */
function Fuse({ share }: { share: number }) {
  return (
    <svg class="fuse" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true" focusable="false">
      <circle class="track" cx="7" cy="7" r="5" />
      <circle class="rest" cx="7" cy="7" r="5" stroke-dasharray={`${(share * AROUND).toFixed(1)} ${AROUND}`} />
    </svg>
  );
}
