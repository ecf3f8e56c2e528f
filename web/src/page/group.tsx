/** The dialog for a conversation: message lifetime, members, invites, bans, names, leave, delete. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Administration, Group, Member } from "../engine/api";
import { Action, Dialog, confirmAction } from "./dialog";
import { ExpiryDialog } from "./expiry";
import { Icon } from "./icons";
import { InviteForm } from "./inviting";
import { Field } from "./login";
import { MemberDialog } from "./member";
import { closeConversation } from "./place";
import { nameOf } from "./sidebar";
import { attempt, closeDialog, engine, openDialog, showToast, useView } from "./store";
import { displayName, singleLine } from "./text";
import { KEEP, lifetimeText, shortTime, now } from "./time";

export function GroupDialog({ groupId }: { groupId: string }) {
  const group = useView().groups.find((each) => each.groupId === groupId);
  const isAdmin = group?.role === "admin";
  const [administration, setAdministration] = useState<Administration | null>(null);
  const read = () => void attempt(engine.administration(groupId).then(setAdministration));
  const members = group?.members.length;
  useEffect(() => {
    if (isAdmin) read();
  }, [isAdmin, members]);
  if (!group) return <Dialog title="Conversation">You are no longer a member.</Dialog>;
  return (
    <Dialog title={nameOf(group)}>
      <section>
        <h3>Message lifetime</h3>
        <p>
          Messages are {lifetimeText(group.lifetime.effective)}
          {group.lifetime.group === KEEP && group.lifetime.effective !== KEEP && " (server default)"}.
          {group.lifetime.isHeld && " A legal hold keeps some expired messages on the server. They are not shown."}
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
      {isAdmin && administration && <Pending groupId={groupId} administration={administration} onChange={read} />}
      {isAdmin && group.direct === null && <NameForm group={group} />}
      <LeaveSection group={group} />
    </Dialog>
  );
}

function MemberRow({ group, member }: { group: Group; member: Member }) {
  const { username, alias, isSelf, role, key } = member;
  const trust = isSelf
    ? "you"
    : !key
      ? "no keys yet"
      : { unknown: "not verified", verified: "verified", changed: "key changed" }[key.trust];
  return (
    <li>
      <button
        type="button"
        onClick={() => openDialog(() => <MemberDialog groupId={group.groupId} userId={member.userId} />)}
      >
        <span>
          <bdi>{displayName(username)}</bdi> {alias && <bdi class="muted">{singleLine(alias)}</bdi>}
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
  onChange: () => void;
}

/** Pending invites, and bans. */
function Pending({ groupId, administration, onChange }: PendingProps) {
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
                  <bdi>{displayName(username)}</bdi> <span class="muted">{shortTime(createdAt, now())}</span>
                </span>
                <Action
                  class="small"
                  label={`Cancel the invite for ${displayName(username)}`}
                  act={() => engine.cancelInvite(groupId, userId).then(onChange)}
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
                  <bdi>{displayName(username)}</bdi> <span class="muted">{shortTime(bannedAt, now())}</span>
                </span>
                <Action
                  class="small"
                  label={`Unban ${displayName(username)}`}
                  act={() => engine.unban(groupId, userId).then(onChange)}
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

function NameForm({ group }: { group: Group }) {
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
    showToast("Saved.");
  };
  return (
    <section>
      <h3>Name</h3>
      <form ref={form} onSubmit={(event) => (event.preventDefault(), void attempt(save()))}>
        <Field name="title" label="Title" value={group.title} autocomplete="off" />
        <Field
          name="name"
          label="Name on the server"
          value={group.name}
          hint="Letters a-z, digits and _"
          autocomplete="off"
        />
        <label class="check">
          <input type="checkbox" checked={isPublic} onChange={(event) => setPublic(event.currentTarget.checked)} />
          Public: anyone on this server can find and join it
        </label>
        <button type="submit">Save</button>
      </form>
    </section>
  );
}

function LeaveSection({ group }: { group: Group }) {
  const name = nameOf(group);
  const onLeft = () => {
    closeDialog();
    closeConversation();
  };
  return (
    <section>
      <h3>Leave or delete</h3>
      <div class="actions start">
        <button
          type="button"
          onClick={() =>
            confirmAction({
              title: `Leave ${name}?`,
              text: "Its messages are erased from this device. To rejoin a private group you need a new invite.",
              action: "Leave",
              isDanger: true,
              act: () => engine.leave(group.groupId),
              done: onLeft,
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
              confirmAction({
                title: `Delete ${name}?`,
                text: "This deletes the conversation and its messages for all members.",
                action: "Delete for everyone",
                isDanger: true,
                act: () => engine.deleteGroup(group.groupId),
                done: onLeft,
              })
            }
          >
            Delete for everyone
          </button>
        )}
      </div>
    </section>
  );
}
