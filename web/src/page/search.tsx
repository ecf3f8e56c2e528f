/** The dialog that finds messages. Nothing of a search is kept. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Found } from "../engine/api";
import { Dialog } from "./dialog";
import { Field } from "./login";
import { choose } from "./place";
import { nameOf } from "./sidebar";
import { closeDialog, engine, useView, why } from "./store";
import { called, count, harmless } from "./text";
import { recently, now, useMoment } from "./time";

/** A result shows so much of its text. */
const MOST_SHOWN = 300;

export function SearchDialog({ groupId }: { groupId?: string }) {
  const view = useView();
  const [isEverywhere, setEverywhere] = useState(!groupId);
  const [text, setText] = useState("");
  const [found, setFound] = useState<readonly Found[] | null>(null);
  const [fault, setFault] = useState("");
  const asked = useRef(0);
  const group = view.groups.find((each) => each.groupId === groupId);
  useEffect(() => {
    const number = ++asked.current;
    if (!text.trim()) return setFound(null);
    // Also after each change of the view: what was taken back or erased goes from here too.
    const timer = setTimeout(() => {
      engine.search(text, isEverywhere ? undefined : groupId).then(
        (results) => number === asked.current && (setFound(results), setFault("")),
        (error: unknown) => number === asked.current && setFault(why(error)),
      );
    }, 200);
    return () => clearTimeout(timer);
  }, [text, isEverywhere, view]);
  const moment = useMoment((found ?? []).map((each) => each.goneAt));
  const here = found?.filter((each) => each.goneAt === null || each.goneAt > moment);
  return (
    <Dialog title="Search">
      <div
        onInput={(event) =>
          (event.target as HTMLInputElement).type === "search" && setText((event.target as HTMLInputElement).value)
        }
      >
        <Field
          name="words"
          label="Words"
          type="search"
          autocomplete="off"
          autofocus
          hint="Each of them, in any order, among the messages on this device"
        />
      </div>
      {group && (
        <label class="check">
          <input
            type="checkbox"
            checked={isEverywhere}
            onChange={(event) => setEverywhere(event.currentTarget.checked)}
          />
          In all conversations, not only in {nameOf(group)}
        </label>
      )}
      <p role="alert">{fault}</p>
      <p role="status" class="hint">
        {here ? (here.length ? count(here.length, "message") : "Nothing here has these words.") : ""}
      </p>
      <ul class="found results" aria-label="Results">
        {here?.map((each) => {
          const where = view.groups.find((one) => one.groupId === each.groupId);
          return (
            <li key={`${each.groupId} ${each.number}`}>
              <button
                type="button"
                onClick={() => {
                  closeDialog();
                  choose(each.groupId, each.number);
                }}
              >
                <span class="meta">
                  <bdi>{called(each.sender)}</bdi>
                  {where && isEverywhere ? ` in ${nameOf(where)}` : ""}, {recently(each.createdAt, now())}
                </span>
                <span dir="auto">{harmless(each.text.slice(0, MOST_SHOWN))}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </Dialog>
  );
}
