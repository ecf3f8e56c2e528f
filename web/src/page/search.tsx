/** The dialog that searches messages on this device. Searches are not stored. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { SearchResult } from "../engine/api";
import { Dialog } from "./dialog";
import { Field } from "./login";
import { navigateTo } from "./place";
import { nameOf } from "./sidebar";
import { closeDialog, engine, errorText, useView } from "./store";
import { displayName, count, sanitize } from "./text";
import { shortTime, now, useNextExpiry } from "./time";

/** Characters of a result that are shown. */
const MAX_RESULT_TEXT = 300;

export function SearchDialog({ groupId }: { groupId?: string }) {
  const view = useView();
  const [isEverywhere, setEverywhere] = useState(!groupId);
  const [text, setText] = useState("");
  const [found, setFound] = useState<readonly SearchResult[] | null>(null);
  const [fault, setFault] = useState("");
  const lastRequest = useRef(0);
  const group = view.groups.find((each) => each.groupId === groupId);
  useEffect(() => {
    const number = ++lastRequest.current;
    if (!text.trim()) return setFound(null);
    // Also after each change of the view, so that deleted messages disappear from the results.
    const timer = setTimeout(() => {
      engine.search(text, isEverywhere ? undefined : groupId).then(
        (result) => number === lastRequest.current && (setFound(result), setFault("")),
        (error: unknown) => number === lastRequest.current && setFault(errorText(error)),
      );
    }, 200);
    return () => clearTimeout(timer);
  }, [text, isEverywhere, view]);
  const second = useNextExpiry((found ?? []).map((each) => each.goneAt));
  const results = found?.filter((each) => each.goneAt === null || each.goneAt > second);
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
          hint="Finds messages on this device that contain all words"
        />
      </div>
      {group && (
        <label class="check">
          <input
            type="checkbox"
            checked={isEverywhere}
            onChange={(event) => setEverywhere(event.currentTarget.checked)}
          />
          Search all conversations, not only {nameOf(group)}
        </label>
      )}
      <p role="alert">{fault}</p>
      <p role="status" class="hint">
        {results ? (results.length ? count(results.length, "message") : "No messages found.") : ""}
      </p>
      <ul class="found results" aria-label="Results">
        {results?.map((each) => {
          const conversation = view.groups.find((one) => one.groupId === each.groupId);
          return (
            <li key={`${each.groupId} ${each.number}`}>
              <button
                type="button"
                onClick={() => {
                  closeDialog();
                  navigateTo(each.groupId, each.number);
                }}
              >
                <span class="meta">
                  <bdi>{displayName(each.sender)}</bdi>
                  {conversation && isEverywhere ? ` in ${nameOf(conversation)}` : ""},{" "}
                  {shortTime(each.createdAt, now())}
                </span>
                <span dir="auto">{sanitize(each.text.slice(0, MAX_RESULT_TEXT))}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </Dialog>
  );
}
