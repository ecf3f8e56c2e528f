/** The dialog that begins a conversation: with a person, with a new group, or with a public one. */

import { useEffect, useState } from "preact/hooks";
import type { PublicGroup } from "../engine/api";
import { Action, Dialog } from "./dialog";
import { Field } from "./login";
import { choose } from "./place";
import { attempt, closeDialog, currentView, engine } from "./store";
import { count, inPassing } from "./text";

export function NewDialog() {
  return (
    <Dialog title="New conversation">
      <OneField
        name="person"
        label="With a person"
        hint="Their name on this server"
        action="Write"
        autofocus
        act={(username) => engine.direct(username)}
      />
      <OneField
        name="title"
        label="With a new group"
        hint="What it is called. The server can read that"
        action="Create"
        act={(title) => engine.createGroup(title)}
      />
      <PublicGroups />
    </Dialog>
  );
}

interface OneFieldProps {
  name: string;
  label: string;
  hint: string;
  action: string;
  autofocus?: boolean;
  /** Answers the group that is to be opened. */
  act: (text: string) => Promise<string>;
}

function OneField({ name, label, hint, action, autofocus, act }: OneFieldProps) {
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget as HTMLFormElement).get(name)).trim();
    if (!text || isBusy) return;
    setBusy(true);
    await attempt(
      act(text).then((groupId) => {
        closeDialog();
        choose(groupId);
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
        <Field name="pattern" label="With a public group" hint="Part of its name" type="search" autocomplete="off" />
      </div>
      <ul class="found" aria-label="Public groups">
        {found?.map((group) => (
          <li key={group.groupId}>
            <span>
              <bdi>{inPassing(group.title || group.name)}</bdi>{" "}
              <span class="muted">{count(group.memberCount, "member")}</span>
            </span>
            <Action
              class="small"
              label={`${own.has(group.groupId) ? "Open" : "Join"} ${inPassing(group.title || group.name)}`}
              act={async () => {
                if (!own.has(group.groupId)) await engine.joinPublic(group.groupId);
                closeDialog();
                choose(group.groupId);
              }}
            >
              {own.has(group.groupId) ? "Open" : "Join"}
            </Action>
          </li>
        ))}
      </ul>
      <p role="status" class="hint">
        {found?.length === 0 ? "No public group has that in its name." : ""}
      </p>
    </section>
  );
}
