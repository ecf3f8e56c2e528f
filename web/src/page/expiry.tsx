/** The dialog that sets how long a group's messages live. What that would hide is shown before it is done. */

import { useEffect, useState } from "preact/hooks";
import type { DryRun } from "../engine/api";
import { Action, Dialog } from "./dialog";
import { attempt, closeDialog, engine, say, useView, why } from "./store";
import { count } from "./text";
import { AFTER_FETCH, CHOICES, KEEP, dateAndTime, policy, words } from "./time";

const OFFERED = [300, 3_600, 86_400, 604_800, 2_592_000];

export function ExpiryDialog({ groupId }: { groupId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const set = group?.lifetime.group ?? KEEP;
  const isOwn = set > 0 && !OFFERED.includes(set);
  const [choice, setChoice] = useState(isOwn ? "own" : String(set));
  const unitOf = [...CHOICES].reverse().find(([size]) => set > 0 && set % size === 0)?.[0] ?? 3_600;
  const [unit, setUnit] = useState(unitOf);
  const [number, setNumber] = useState(String(isOwn ? set / unitOf : 2));
  const [tried, setTried] = useState<DryRun | null>(null);
  const [fault, setFault] = useState("");

  const seconds = choice === "own" ? Number(number) * unit : Number(choice);
  const isValid = Number.isSafeInteger(seconds) && (seconds > 0 || choice !== "own");
  useEffect(() => {
    let isCurrent = true;
    setTried(null);
    setFault(isValid ? "" : "Write a whole number above 0.");
    if (!isValid) return;
    const timer = setTimeout(() => {
      engine.tryExpiry(groupId, seconds).then(
        (result) => isCurrent && setTried(result),
        (error: unknown) => isCurrent && setFault(why(error)),
      );
    }, 150);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [seconds, isValid]);

  if (!group) return <Dialog title="How long messages live">{"You are no member any more."}</Dialog>;
  const server = group.lifetime.server;
  const option = (value: string, label: string) => (
    <label class="check" key={value}>
      <input type="radio" name="lifetime" checked={choice === value} onChange={() => setChoice(value)} /> {label}
    </label>
  );
  return (
    <Dialog title="How long messages live">
      <fieldset>
        <legend>For all messages of this group, those that are there too</legend>
        {option(
          String(KEEP),
          server === KEEP ? "For good, as this server does" : `As this server says: ${policy(server)}`,
        )}
        <div class="choices">
          {OFFERED.map((each) => option(String(each), words(each)))}
          {option("own", "Another time")}
        </div>
        {choice === "own" && (
          <div class="row">
            <input
              type="number"
              min="1"
              inputMode="numeric"
              aria-label="How many"
              value={number}
              onInput={(event) => setNumber(event.currentTarget.value)}
            />
            <select aria-label="Unit" value={unit} onChange={(event) => setUnit(Number(event.currentTarget.value))}>
              {CHOICES.map(([size, word]) => (
                <option key={size} value={size}>
                  {word}
                </option>
              ))}
            </select>
          </div>
        )}
        {option(String(AFTER_FETCH), "Until all have fetched them: then the server deletes them")}
      </fieldset>
      <div role="status" class={tried?.messagesExpiring ? "outcome warning" : "outcome"}>
        {fault ? (
          <p class="fault">{fault}</p>
        ) : tried ? (
          <Outcome tried={tried} seconds={seconds} />
        ) : (
          <p>Asking the server…</p>
        )}
      </div>
      <div class="actions">
        <button type="button" onClick={closeDialog}>
          Cancel
        </button>
        <Action
          class={tried?.messagesExpiring ? "danger" : "primary"}
          disabled={!tried}
          act={async () => {
            if (!(await attempt(engine.setExpiry(groupId, seconds)))) return;
            closeDialog();
            say(`Messages are ${policy(tried?.effective ?? seconds)} from now on.`);
          }}
        >
          {tried?.messagesExpiring ? `Set it, and hide ${count(tried.messagesExpiring, "message")}` : "Set it"}
        </Action>
      </div>
    </Dialog>
  );
}

function Outcome({ tried, seconds }: { tried: DryRun; seconds: number }) {
  const { messagesExpiring, oldestExpiring, effective } = tried;
  return (
    <>
      <p>
        {messagesExpiring > 0
          ? `${count(messagesExpiring, "message")} would be gone at once for everybody${
              oldestExpiring ? `, the oldest from ${dateAndTime(oldestExpiring)}` : ""
            }. No later change brings them back.`
          : "No message would go at once."}
      </p>
      {effective !== seconds && seconds !== KEEP && <p>The operator's rules make of it: {policy(effective)}.</p>}
    </>
  );
}
