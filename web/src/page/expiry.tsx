/** The dialog that sets the lifetime of a group's messages. It shows first how many messages that would delete. */

import { useEffect, useState } from "preact/hooks";
import type { DryRun } from "../engine/api";
import { Action, Dialog } from "./dialog";
import { closeDialog, engine, errorText, showToast, useView } from "./store";
import { count } from "./text";
import { AFTER_FETCH, KEEP, LIFETIME_UNITS, dateAndTime, durationText, lifetimeText } from "./time";

const PRESETS = [300, 3_600, 86_400, 604_800, 2_592_000];

export function ExpiryDialog({ groupId }: { groupId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const set = group?.lifetime.group ?? KEEP;
  const isCustom = set > 0 && !PRESETS.includes(set);
  const [choice, setChoice] = useState(isCustom ? "custom" : String(set));
  const largestUnit = [...LIFETIME_UNITS].reverse().find(([size]) => set > 0 && set % size === 0)?.[0] ?? 3_600;
  const [unit, setUnit] = useState(largestUnit);
  const [number, setNumber] = useState(String(isCustom ? set / largestUnit : 2));
  const [preview, setPreview] = useState<DryRun | null>(null);
  const [fault, setFault] = useState("");

  const seconds = choice === "custom" ? Number(number) * unit : Number(choice);
  const isValid = Number.isSafeInteger(seconds) && (seconds > 0 || choice !== "custom");
  useEffect(() => {
    let isCurrent = true;
    setPreview(null);
    setFault(isValid ? "" : "Enter a whole number above 0.");
    if (!isValid) return;
    const timer = setTimeout(() => {
      engine.previewExpiry(groupId, seconds).then(
        (result) => isCurrent && setPreview(result),
        (error: unknown) => isCurrent && setFault(errorText(error)),
      );
    }, 150);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [seconds, isValid]);

  if (!group) return <Dialog title="Message lifetime">You are no longer a member.</Dialog>;
  const server = group.lifetime.server;
  const option = (value: string, label: string) => (
    <label class="check" key={value}>
      <input type="radio" name="lifetime" checked={choice === value} onChange={() => setChoice(value)} /> {label}
    </label>
  );
  return (
    <Dialog title="Message lifetime">
      <fieldset>
        <legend>For all messages of this group, including existing ones</legend>
        {option(String(KEEP), `Server default: ${lifetimeText(server)}`)}
        <div class="choices">
          {PRESETS.map((each) => option(String(each), durationText(each)))}
          {option("custom", "Custom")}
        </div>
        {choice === "custom" && (
          <div class="row">
            <input
              type="number"
              min="1"
              inputMode="numeric"
              aria-label="Number"
              value={number}
              onInput={(event) => setNumber(event.currentTarget.value)}
            />
            <select aria-label="Unit" value={unit} onChange={(event) => setUnit(Number(event.currentTarget.value))}>
              {LIFETIME_UNITS.map(([size, word]) => (
                <option key={size} value={size}>
                  {word}
                </option>
              ))}
            </select>
          </div>
        )}
        {option(String(AFTER_FETCH), "Until all members have fetched them")}
      </fieldset>
      <div role="status" class={preview?.messagesExpiring ? "outcome warning" : "outcome"}>
        {fault ? (
          <p class="fault">{fault}</p>
        ) : preview ? (
          <Preview preview={preview} seconds={seconds} />
        ) : (
          <p>Checking…</p>
        )}
      </div>
      <div class="actions">
        <button type="button" onClick={closeDialog}>
          Cancel
        </button>
        <Action
          class={preview?.messagesExpiring ? "danger" : "primary"}
          disabled={!preview}
          act={async () => {
            await engine.setExpiry(groupId, seconds);
            closeDialog();
            showToast(`Messages are now ${lifetimeText(preview?.effective ?? seconds)}.`);
          }}
        >
          {preview?.messagesExpiring
            ? `Set lifetime and delete ${count(preview.messagesExpiring, "message")}`
            : "Set lifetime"}
        </Action>
      </div>
    </Dialog>
  );
}

function Preview({ preview, seconds }: { preview: DryRun; seconds: number }) {
  const { messagesExpiring, oldestExpiring, effective } = preview;
  return (
    <>
      <p>
        {messagesExpiring > 0
          ? `${count(messagesExpiring, "message")} would be deleted at once for everyone${
              oldestExpiring ? `, the oldest from ${dateAndTime(oldestExpiring)}` : ""
            }. This cannot be undone.`
          : "No messages would be deleted now."}
      </p>
      {effective !== seconds && seconds !== KEEP && (
        <p>The server's limits apply: messages would be {lifetimeText(effective)}.</p>
      )}
    </>
  );
}
