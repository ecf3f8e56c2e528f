/** The dialog in which two people compare their keys. */

import { useEffect, useState } from "preact/hooks";
import type { Code } from "../engine/api";
import { Action, Dialog } from "./dialog";
import { attempt, closeDialog, engine, say, useView, why } from "./store";
import { called } from "./text";

export function CompareDialog({ groupId, userId }: { groupId: string; userId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const member = group?.members.find((each) => each.userId === userId);
  const fingerprint = member?.key?.fingerprint ?? "";
  const [code, setCode] = useState<Code | null>(null);
  const [fault, setFault] = useState("");
  useEffect(() => {
    setCode(null);
    if (!fingerprint) return;
    engine.code(userId, fingerprint).then(setCode, (error: unknown) => setFault(why(error)));
  }, [fingerprint]);
  if (!member) return <Dialog title="Compare keys">{"This person is no member any more."}</Dialog>;
  const name = called(member.username);
  return (
    <Dialog title={`Compare keys with ${name}`}>
      <p>
        {name} sees the same code in their own chat, by the same dialog or <code>/verify</code>. Read it to each other
        on the phone or face to face, not in the chat. If it is the same, nobody is between you.
      </p>
      <p role="alert">{fault}</p>
      {code && (
        <>
          <p class="code" aria-label="The code in digits">
            {code.digits.map((each) => (
              <span key={each}>{each} </span>
            ))}
          </p>
          <p class="hint">The same code in words:</p>
          <p class="words">{code.words.join(" ")}</p>
          <div class="actions">
            <button type="button" onClick={closeDialog}>
              It differs, or later
            </button>
            <Action
              class="primary"
              act={async () => {
                if (!(await attempt(engine.verify(userId, fingerprint)))) return;
                closeDialog();
                say(`${name} is verified.`);
              }}
            >
              It is the same
            </Action>
          </div>
        </>
      )}
    </Dialog>
  );
}
