/** The form that invites a user to a group. */

import { useRef, useState } from "preact/hooks";
import { Field } from "./login";
import { attempt, engine, showToast } from "./store";
import { displayName } from "./text";

export function InviteForm({ groupId, done }: { groupId: string; done?: () => void }) {
  const form = useRef<HTMLFormElement>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    const name = String(new FormData(form.current!).get("invitee")).trim();
    if (!name || isBusy) return;
    setBusy(true);
    if (await attempt(engine.invite(groupId, name))) {
      form.current?.reset();
      showToast(`Invited ${displayName(name)}.`);
      done?.();
    }
    setBusy(false);
  };
  return (
    <form class="row" ref={form} onSubmit={submit}>
      <Field name="invitee" label="Invite someone" hint="Username on this server" autocomplete="off" />
      <button type="submit" aria-busy={isBusy}>
        Invite
      </button>
    </form>
  );
}
