/** The dialog that starts a conversation: with a person, in a new group, or in a public group. */

import { useEffect, useState } from "preact/hooks";
import type { PublicGroup } from "../engine/api";
import { Action, Dialog } from "./dialog";
import { Field } from "./login";
import { navigateTo } from "./place";
import { attempt, closeDialog, currentView, engine } from "./store";
import { count, singleLine } from "./text";

export function NewDialog() {
  return (
    <Dialog title="New conversation">
      <SingleFieldForm
        name="person"
        label="Direct message"
        hint="Username on this server"
        action="Start"
        autofocus
        act={(username) => engine.openDirect(username)}
      />
      <SingleFieldForm
        name="title"
        label="New group"
        hint="Title, visible to the server"
        action="Create"
        act={(title) => engine.createGroup(title)}
      />
      <PublicGroups />
    </Dialog>
  );
}

interface SingleFieldFormProps {
  name: string;
  label: string;
  hint: string;
  action: string;
  autofocus?: boolean;
  /** Returns the id of the group to open. */
  act: (text: string) => Promise<string>;
}

function SingleFieldForm({ name, label, hint, action, autofocus, act }: SingleFieldFormProps) {
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget as HTMLFormElement).get(name)).trim();
    if (!text || isBusy) return;
    setBusy(true);
    await attempt(
      act(text).then((groupId) => {
        closeDialog();
        navigateTo(groupId);
      }),
    );
    setBusy(false);
  };
  return (
    <form class="row" onSubmit={submit}>
      <Field name={name} label={label} hint={hint} autocomplete="off" autofocus={autofocus} />
      <button type="submit" aria-busy={isBusy}>
        {action}
      </button>
    </form>
  );
}

function PublicGroups() {
  const [pattern, setPattern] = useState("");
  const [found, setFound] = useState<PublicGroup[] | null>(null);
  useEffect(() => {
    let isCurrent = true;
    const timer = setTimeout(async () => {
      const groups = await engine.findPublic(pattern).catch(() => null);
      if (isCurrent) setFound(groups);
    }, 250);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [pattern]);
  const own = new Set(currentView().groups.map((each) => each.groupId));
  return (
    <section>
      <div onInput={(event) => setPattern((event.target as HTMLInputElement).value)}>
        <Field name="pattern" label="Public groups" hint="Part of the name" type="search" autocomplete="off" />
      </div>
      <ul class="found" aria-label="Public groups">
        {found?.map((group) => (
          <li key={group.groupId}>
            <span>
              <bdi>{singleLine(group.title || group.name)}</bdi>{" "}
              <span class="muted">{count(group.memberCount, "member")}</span>
            </span>
            <Action
              class="small"
              label={`${own.has(group.groupId) ? "Open" : "Join"} ${singleLine(group.title || group.name)}`}
              act={async () => {
                if (!own.has(group.groupId)) await engine.joinPublic(group.groupId);
                closeDialog();
                navigateTo(group.groupId);
              }}
            >
              {own.has(group.groupId) ? "Open" : "Join"}
            </Action>
          </li>
        ))}
      </ul>
      <p role="status" class="hint">
        {found?.length === 0 ? "No public group found." : ""}
      </p>
    </section>
  );
}
