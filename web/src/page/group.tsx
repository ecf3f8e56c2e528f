/** The dialog about a conversation: its members, how long messages live, its names, and the ways out. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Administration, Group, Member } from "../engine/api";
import { Action, Dialog, ask } from "./dialog";
import { ExpiryDialog } from "./expiry";
import { Icon } from "./icons";
import { InviteForm } from "./inviting";
import { Field } from "./login";
import { MemberDialog } from "./member";
import { forget } from "./place";
import { nameOf } from "./sidebar";
import { attempt, closeDialog, engine, openDialog, say, useView } from "./store";
import { called, inPassing } from "./text";
import { KEEP, policy, recently, now } from "./time";

export function GroupDialog({ groupId }: { groupId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const isAdmin = group?.role === "admin";
  const [administration, setAdministration] = useState<Administration | null>(null);
  const read = () => void attempt(engine.administration(groupId).then(setAdministration));
  const members = group?.members.length;
  useEffect(() => {
    if (isAdmin) read();
  }, [isAdmin, members]);
  if (!group) return <Dialog title="Conversation">You are no member any more.</Dialog>;
  return (
    <Dialog title={nameOf(group)}>
      <section>
        <h3>How long messages live</h3>
        <p>
          They are {policy(group.lifetime.effective)}
          {group.lifetime.group === KEEP && group.lifetime.effective !== KEEP && ", as this server says"}.
          {group.lifetime.isHeld && " The operator holds some back from erasure for now; nobody is shown them."}
        </p>
        {isAdmin && (
          <button type="button" onClick={() => openDialog(() => <ExpiryDialog groupId={groupId} />)}>
            <Icon name="clock" /> Change
          </button>
        )}
      </section>
      <section>
        <h3>Members</h3>
        <ul class="members">
          {group.members.map((member) => (
            <MemberRow key={member.userId} group={group} member={member} />
          ))}
        </ul>
        {isAdmin && group.direct === null && <InviteForm groupId={groupId} done={read} />}
      </section>
      {isAdmin && administration && <Pending groupId={groupId} administration={administration} changed={read} />}
      {isAdmin && group.direct === null && <Names group={group} />}
      <Leaving group={group} />
    </Dialog>
  );
}

function MemberRow({ group, member }: { group: Group; member: Member }) {
  const { username, alias, isSelf, role, key } = member;
  const trust = isSelf
    ? "you"
    : !key
      ? "cannot read yet"
      : { unknown: "not compared", verified: "verified", changed: "another key" }[key.trust];
  return (
    <li>
      <button
        type="button"
        onClick={() => openDialog(() => <MemberDialog groupId={group.groupId} userId={member.userId} />)}
      >
        <span>
          <bdi>{called(username)}</bdi> {alias && <bdi class="muted">{inPassing(alias)}</bdi>}
        </span>
        <span class={key?.trust === "changed" ? "danger-text" : "muted"}>
          {role === "admin" && "admin, "}
          {trust}
        </span>
      </button>
    </li>
  );
}

interface PendingProps {
  groupId: string;
  administration: Administration;
  changed: () => void;
}

function Pending({ groupId, administration, changed }: PendingProps) {
  const { invites, banned } = administration;
  return (
    <>
      {invites.length > 0 && (
        <section>
          <h3>Invited</h3>
          <ul class="found">
            {invites.map(({ userId, username, createdAt }) => (
              <li key={userId}>
                <span>
                  <bdi>{called(username)}</bdi> <span class="muted">{recently(createdAt, now())}</span>
                </span>
                <Action
                  class="small"
                  label={`Cancel the invite of ${called(username)}`}
                  act={() => engine.cancelInvite(groupId, userId).then(changed)}
                >
                  Cancel
                </Action>
              </li>
            ))}
          </ul>
        </section>
      )}
      {banned.length > 0 && (
        <section>
          <h3>Banned</h3>
          <ul class="found">
            {banned.map(({ userId, username, bannedAt }) => (
              <li key={userId}>
                <span>
                  <bdi>{called(username)}</bdi> <span class="muted">{recently(bannedAt, now())}</span>
                </span>
                <Action
                  class="small"
                  label={`Unban ${called(username)}`}
                  act={() => engine.unban(groupId, userId).then(changed)}
                >
                  Unban
                </Action>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function Names({ group }: { group: Group }) {
  const form = useRef<HTMLFormElement>(null);
  const [isPublic, setPublic] = useState(group.visibility === "public");
  const save = async () => {
    const data = new FormData(form.current!);
    const [title, name] = [String(data.get("title")).trim(), String(data.get("name")).trim()];
    const change = {
      ...(title === group.title ? {} : { title }),
      ...(name === group.name || !name ? {} : { name }),
      ...(isPublic === (group.visibility === "public")
        ? {}
        : ({ visibility: isPublic ? "public" : "private" } as const)),
    };
    if (!Object.keys(change).length) return;
    await engine.changeGroup(group.groupId, change);
    say("Changed.");
  };
  return (
    <section>
      <h3>Name</h3>
      <form ref={form} onSubmit={(event) => (event.preventDefault(), void attempt(save()))}>
        <Field name="title" label="Title" value={group.title} autocomplete="off" />
        <Field
          name="name"
          label="Name at the server"
          value={group.name}
          hint="Letters a to z, digits and _"
          autocomplete="off"
        />
        <label class="check">
          <input type="checkbox" checked={isPublic} onChange={(event) => setPublic(event.currentTarget.checked)} />
          Public: everybody on this server can find it and join
        </label>
        <button type="submit">Save</button>
      </form>
    </section>
  );
}

function Leaving({ group }: { group: Group }) {
  const name = nameOf(group);
  const gone = () => {
    closeDialog();
    forget();
  };
  return (
    <section>
      <h3>Ways out</h3>
      <div class="actions start">
        <button
          type="button"
          onClick={() =>
            ask({
              title: `Leave ${name}?`,
              text: "What is here of it is erased on this device. You come back only if you are invited again, or if it is public.",
              action: "Leave",
              isDanger: true,
              act: () => engine.leave(group.groupId),
              done: gone,
            })
          }
        >
          Leave
        </button>
        {group.role === "admin" && (
          <button
            type="button"
            class="danger"
            onClick={() =>
              ask({
                title: `Delete ${name}?`,
                text: "It goes for all its members, with all its messages.",
                action: "Delete for everybody",
                isDanger: true,
                act: () => engine.deleteGroup(group.groupId),
                done: gone,
              })
            }
          >
            Delete for everybody
          </button>
        )}
      </div>
    </section>
  );
}
