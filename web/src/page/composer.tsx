/** The field in which people write. */

import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Group, Message } from "../engine/api";
import { Icon } from "./icons";
import { attempt, engine } from "./store";
import { beginning, called, inPassing } from "./text";
import { words } from "./time";

/** What is typed is kept once nothing was typed for so long, in milliseconds. */
const DRAFT_AFTER = 400;

const MOST_ROWS_PIXELS = 160;

/** After how many seconds a message may destroy itself. */
const BURNS = [0, 10, 30, 60, 300, 3_600, 86_400, 604_800];

const MENTION = /(^|[\s(])@([a-zA-Z0-9_]{0,64})$/;

/** A device without a mouse, whose Enter key begins a new line: there is a button that sends. */
const isTouch = () => matchMedia("(pointer: coarse)").matches;

interface Props {
  group: Group;
  draft: string;
  replyTo: Message | null;
  onReplied: () => void;
}

export function Composer({ group, draft, replyTo, onReplied }: Props) {
  const { groupId } = group;
  const [text, setText] = useState(draft);
  const [burn, setBurn] = useState(0);
  const [beginsName, setBeginsName] = useState<string | null>(null);
  const [chosen, setChosen] = useState(0);
  const field = useRef<HTMLTextAreaElement>(null);
  const kept = useRef(draft);
  const latest = useRef(text);
  const id = useId();
  latest.current = text;

  const keep = () => {
    if (kept.current === latest.current) return;
    kept.current = latest.current;
    void engine.draft(groupId, latest.current);
  };
  useEffect(() => {
    const timer = setTimeout(keep, DRAFT_AFTER);
    return () => clearTimeout(timer);
  }, [text]);
  useEffect(() => keep, []);
  useLayoutEffect(() => {
    const { style } = field.current!;
    style.height = "auto";
    style.height = `${Math.min(field.current!.scrollHeight, MOST_ROWS_PIXELS)}px`;
  }, [text]);
  useEffect(() => {
    if (!isTouch()) field.current!.focus();
  }, []);

  const suggested =
    beginsName === null
      ? []
      : group.members
          .filter((each) => !each.isSelf && each.username.toLowerCase().startsWith(beginsName.toLowerCase()))
          .slice(0, 6);

  const typed = () => {
    const { value, selectionStart } = field.current!;
    setText(value);
    setBeginsName(MENTION.exec(value.slice(0, selectionStart))?.[2] ?? null);
    setChosen(0);
  };

  const complete = (username: string) => {
    const { value, selectionStart } = field.current!;
    const before = value.slice(0, selectionStart).replace(MENTION, `$1@${username} `);
    const whole = before + value.slice(selectionStart);
    field.current!.value = whole;
    field.current!.setSelectionRange(before.length, before.length);
    field.current!.focus();
    setText(whole);
    setBeginsName(null);
  };

  const send = (event?: Event) => {
    event?.preventDefault();
    const written = text.trim();
    if (!written) return;
    setText("");
    setBeginsName(null);
    kept.current = "";
    field.current!.focus();
    void attempt(
      engine
        .send(groupId, written, {
          ...(burn ? { selfDestructSeconds: burn } : {}),
          ...(replyTo ? { replyTo: replyTo.number } : {}),
        })
        .catch((error: unknown) => {
          setText((now) => now || written); // what cannot be taken is typed anew otherwise
          throw error;
        }),
    );
    onReplied();
  };

  const pressed = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (suggested.length && ["ArrowDown", "ArrowUp", "Tab", "Enter", "Escape"].includes(event.key)) {
      event.preventDefault();
      if (event.key === "Escape") return setBeginsName(null);
      if (event.key === "Tab" || event.key === "Enter") return complete(suggested[chosen]!.username);
      const step = event.key === "ArrowDown" ? 1 : suggested.length - 1;
      return setChosen((chosen + step) % suggested.length);
    }
    if (event.key === "Escape" && replyTo) onReplied();
    else if (event.key === "Escape" && !text) void attempt(engine.readAll(groupId));
    if (event.key === "Enter" && !event.shiftKey && !isTouch()) send(event);
  };

  return (
    <form class="composer" autocomplete="off" onSubmit={send}>
      {replyTo && (
        <div class="replying">
          <Icon name="reply" />
          <p>
            <span class="sr">You answer </span>
            <strong>{replyTo.isOwn ? "You" : called(replyTo.sender)}</strong>{" "}
            {replyTo.selfDestructSeconds ? "" : inPassing(beginning(replyTo.text ?? ""))}
          </p>
          <button class="icon" type="button" aria-label="Answer nobody" onClick={onReplied}>
            <Icon name="close" />
          </button>
        </div>
      )}
      {suggested.length > 0 && (
        <ul class="suggested" role="listbox" id={id} aria-label="Members">
          {suggested.map((each, at) => (
            <li
              key={each.userId}
              id={`${id}-${at}`}
              role="option"
              aria-selected={at === chosen}
              onPointerDown={(event) => {
                event.preventDefault();
                complete(each.username);
              }}
            >
              @{each.username} {each.alias && <span class="muted">{inPassing(each.alias)}</span>}
            </li>
          ))}
        </ul>
      )}
      <div class="line">
        <label class={burn ? "burn chosen" : "burn"}>
          <Icon name="flame" />
          <span class="sr">Destroys itself</span>
          <select
            title="How long after it was read it destroys itself"
            value={burn}
            onChange={(event) => setBurn(Number(event.currentTarget.value))}
          >
            {BURNS.map((each) => (
              <option key={each} value={each}>
                {each ? `${words(each)} after reading` : "does not destroy itself"}
              </option>
            ))}
          </select>
          {burn > 0 && <span aria-hidden="true">{shortly(burn)}</span>}
        </label>
        <textarea
          ref={field}
          rows={1}
          value={text}
          placeholder="Message"
          aria-label="Message"
          autocomplete="off"
          enterkeyhint={isTouch() ? undefined : "send"}
          {...(suggested.length
            ? {
                "aria-autocomplete": "list",
                "aria-controls": id,
                "aria-activedescendant": `${id}-${chosen}`,
              }
            : {})}
          onInput={typed}
          onKeyDown={pressed}
          onBlur={() => setBeginsName(null)}
        />
        <button class="icon send" type="submit" aria-label="Send" disabled={!text.trim()}>
          <Icon name="send" />
        </button>
      </div>
    </form>
  );
}

/** 10s, 5min, 1h. */
function shortly(seconds: number): string {
  const [number, word] = words(seconds).split(" ");
  return `${number}${word!.startsWith("min") ? "min" : word![0]}`;
}
