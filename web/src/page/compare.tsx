/** The dialog in which two people compare their keys. */

import { useEffect, useState } from "preact/hooks";
import type { Code } from "../engine/api";
import { Action, Dialog } from "./dialog";
import { closeDialog, engine, errorText, showToast, useView } from "./store";
import { displayName } from "./text";

export function CompareDialog({ groupId, userId }: { groupId: string; userId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const member = group?.members.find((each) => each.userId === userId);
  const fingerprint = member?.key?.fingerprint ?? "";
  const [code, setCode] = useState<Code | null>(null);
  const [fault, setFault] = useState("");
  useEffect(() => {
    setCode(null);
    if (!fingerprint) return;
    engine.comparisonCode(userId, fingerprint).then(setCode, (error: unknown) => setFault(errorText(error)));
  }, [fingerprint]);
  if (!member) return <Dialog title="Compare keys">This person is no longer a member.</Dialog>;
  const name = displayName(member.username);
  return (
    <Dialog title={`Compare keys with ${name}`}>
      <p>
        {name} sees a code in this dialog too, or with <code>/verify</code> in the terminal. Compare the codes by phone
        or in person, not in the chat. If they match, no one is intercepting your messages.
      </p>
      <p role="alert">{fault}</p>
      {code && (
        <>
          <p class="code" aria-label="Code in digits">
            {code.digits.map((each) => (
              <span key={each}>{each} </span>
            ))}
          </p>
          <p class="hint">The same code in words:</p>
          <p class="words">{code.words.join(" ")}</p>
          <div class="actions">
            <button type="button" onClick={closeDialog}>
              Cancel
            </button>
            <Action
              class="primary"
              act={async () => {
                await engine.verify(userId, fingerprint);
                closeDialog();
                showToast(`${name}'s key is verified.`);
              }}
            >
              They match
            </Action>
          </div>
        </>
      )}
    </Dialog>
  );
}
