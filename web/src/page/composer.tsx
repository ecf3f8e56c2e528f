/** The field for new messages, with replies, mentions and the self-destruct timer. */

import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Group, Message } from "../engine/api";
import { Icon } from "./icons";
import { attempt, engine } from "./store";
import { quotePreview, displayName, singleLine } from "./text";
import { durationText } from "./time";

/** A draft is saved this long after the last keystroke. */
const SAVE_DELAY_MS = 400;

const MAX_HEIGHT_PX = 160;

/** The self-destruct timers on offer, in seconds; 0: off. */
const TIMERS = [0, 10, 30, 60, 300, 3_600, 86_400, 604_800];

const MENTION = /(^|[\s(])@([a-zA-Z0-9_]{0,64})$/;

/** On a touch screen Enter inserts a line break, and the button sends. */
const isTouch = () => matchMedia("(pointer: coarse)").matches;

interface Props {
  group: Group;
  draft: string;
  replyTo: Message | null;
  onReplyEnd: () => void;
}

export function Composer({ group, draft, replyTo, onReplyEnd }: Props) {
  const { groupId } = group;
  const [text, setText] = useState(draft);
  const [timer, setTimer] = useState(0);
  const [mentionPrefix, setMentionPrefix] = useState<string | null>(null);
  const [selected, setSelected] = useState(0);
  const field = useRef<HTMLTextAreaElement>(null);
  const saved = useRef(draft);
  const latest = useRef(text);
  const id = useId();
  latest.current = text;

  const saveDraft = () => {
    if (saved.current === latest.current) return;
    saved.current = latest.current;
    void engine.saveDraft(groupId, latest.current);
  };
  useEffect(() => {
    const delay = setTimeout(saveDraft, SAVE_DELAY_MS);
    return () => clearTimeout(delay);
  }, [text]);
  useEffect(() => saveDraft, []);
  useLayoutEffect(() => {
    const { style } = field.current!;
    style.height = "auto";
    style.height = `${Math.min(field.current!.scrollHeight, MAX_HEIGHT_PX)}px`;
  }, [text]);
  useEffect(() => {
    if (!isTouch()) field.current!.focus();
  }, []);

  const suggestions =
    mentionPrefix === null
      ? []
      : group.members
          .filter((each) => !each.isSelf && each.username.toLowerCase().startsWith(mentionPrefix.toLowerCase()))
          .slice(0, 6);

  const onInput = () => {
    const { value, selectionStart } = field.current!;
    setText(value);
    setMentionPrefix(MENTION.exec(value.slice(0, selectionStart))?.[2] ?? null);
    setSelected(0);
  };

  const completeMention = (username: string) => {
    const { value, selectionStart } = field.current!;
    const before = value.slice(0, selectionStart).replace(MENTION, `$1@${username} `);
    const whole = before + value.slice(selectionStart);
    field.current!.value = whole;
    field.current!.setSelectionRange(before.length, before.length);
    field.current!.focus();
    setText(whole);
    setMentionPrefix(null);
  };

  const send = (event?: Event) => {
    event?.preventDefault();
    const written = text.trim();
    if (!written) return;
    setText("");
    setMentionPrefix(null);
    saved.current = "";
    field.current!.focus();
    void attempt(
      engine
        .send(groupId, written, {
          ...(timer ? { selfDestructSeconds: timer } : {}),
          ...(replyTo ? { replyTo: replyTo.number } : {}),
        })
        .catch((error: unknown) => {
          setText((now) => now || written); // so that the user need not type it again
          throw error;
        }),
    );
    onReplyEnd();
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (suggestions.length && ["ArrowDown", "ArrowUp", "Tab", "Enter", "Escape"].includes(event.key)) {
      event.preventDefault();
      if (event.key === "Escape") return setMentionPrefix(null);
      if (event.key === "Tab" || event.key === "Enter") return completeMention(suggestions[selected]!.username);
      const step = event.key === "ArrowDown" ? 1 : suggestions.length - 1;
      return setSelected((selected + step) % suggestions.length);
    }
    if (event.key === "Escape" && replyTo) onReplyEnd();
    else if (event.key === "Escape" && !text) void attempt(engine.markAllRead(groupId));
    if (event.key === "Enter" && !event.shiftKey && !isTouch()) send(event);
  };

  return (
    <form class="composer" autocomplete="off" onSubmit={send}>
      {replyTo && (
        <div class="replying">
          <Icon name="reply" />
          <p>
            <span class="sr">Replying to </span>
            <strong>{replyTo.isOwn ? "You" : displayName(replyTo.sender)}</strong>{" "}
            {replyTo.selfDestructSeconds ? "" : singleLine(quotePreview(replyTo.text ?? ""))}
          </p>
          <button class="icon" type="button" aria-label="Cancel reply" onClick={onReplyEnd}>
            <Icon name="close" />
          </button>
        </div>
      )}
      {suggestions.length > 0 && (
        <ul class="suggestions" role="listbox" id={id} aria-label="Members">
          {suggestions.map((each, at) => (
            <li
              key={each.userId}
              id={`${id}-${at}`}
              role="option"
              aria-selected={at === selected}
              onPointerDown={(event) => {
                event.preventDefault();
                completeMention(each.username);
              }}
            >
              @{each.username} {each.alias && <span class="muted">{singleLine(each.alias)}</span>}
            </li>
          ))}
        </ul>
      )}
      <div class="line">
        <label class={timer ? "timer chosen" : "timer"}>
          <Icon name="flame" />
          <span class="sr">Self-destruct</span>
          <select
            title="Self-destruct timer"
            value={timer}
            onChange={(event) => setTimer(Number(event.currentTarget.value))}
          >
            {TIMERS.map((each) => (
              <option key={each} value={each}>
                {each ? `${durationText(each)} after reading` : "No self-destruct"}
              </option>
            ))}
          </select>
          {timer > 0 && <span aria-hidden="true">{shortDuration(timer)}</span>}
        </label>
        <textarea
          ref={field}
          rows={1}
          value={text}
          placeholder="Message"
          aria-label="Message"
          autocomplete="off"
          enterkeyhint={isTouch() ? undefined : "send"}
          {...(suggestions.length
            ? {
                "aria-autocomplete": "list",
                "aria-controls": id,
                "aria-activedescendant": `${id}-${selected}`,
              }
            : {})}
          onInput={onInput}
          onKeyDown={onKeyDown}
          onBlur={() => setMentionPrefix(null)}
        />
        <button class="icon send" type="submit" aria-label="Send" disabled={!text.trim()}>
          <Icon name="send" />
        </button>
      </div>
    </form>
  );
}

/** Returns a duration like "10s", "5min" or "1h". */
function shortDuration(seconds: number): string {
  const [number, word] = durationText(seconds).split(" ");
  return `${number}${word!.startsWith("min") ? "min" : word![0]}`;
}
