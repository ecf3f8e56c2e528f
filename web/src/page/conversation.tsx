/** The open conversation: its heading, warnings, messages, and the composer. */

import { useEffect, useState } from "preact/hooks";
import type { Conversation as Shown, Group, Message, View } from "../engine/api";
import { Composer } from "./composer";
import { Action, confirmAction } from "./dialog";
import { GroupDialog } from "./group";
import { Icon } from "./icons";
import { InviteForm } from "./inviting";
import { CompareDialog } from "./compare";
import { navigateBack } from "./place";
import { SearchDialog } from "./search";
import { ConnectionLine, nameOf } from "./sidebar";
import { engine, openDialog } from "./store";
import { displayName, joinNames } from "./text";
import { lifetimeText } from "./time";
import { Timeline } from "./timeline";

interface Props {
  view: View;
  group: Group;
  conversation: Shown | null;
}

export function Conversation({ view, group, conversation }: Props) {
  const [replyTo, setReplyTo] = useState<Message | null>(null);
  useEffect(() => setReplyTo(null), [group.groupId]);
  const canReply = replyTo && conversation?.messages.some((each) => each.number === replyTo.number);
  const isEmpty = conversation && !conversation.messages.length && !conversation.sending.length;
  return (
    <section class="conversation" aria-label={nameOf(group)}>
      <Heading group={group} />
      <div class="narrow-only">
        <ConnectionLine view={view} />
      </div>
      <Warnings group={group} />
      {conversation && view.clockOffset !== null ? (
        <Timeline key={group.groupId} view={view} group={group} conversation={conversation} onReply={setReplyTo}>
          {isEmpty && conversation.isComplete && <EmptyState group={group} />}
        </Timeline>
      ) : (
        <div class="timeline waiting" role="status">
          {view.clockOffset === null && view.connection.state === "offline"
            ? "Messages cannot be shown offline before the server's time is known."
            : "Loading…"}
        </div>
      )}
      {conversation && (
        <Composer
          key={group.groupId}
          group={group}
          draft={conversation.draft}
          replyTo={canReply ? replyTo : null}
          onReplyEnd={() => setReplyTo(null)}
        />
      )}
    </section>
  );
}

function Heading({ group }: { group: Group }) {
  const details = () => openDialog(() => <GroupDialog groupId={group.groupId} />);
  return (
    <header class="bar">
      <button class="icon narrow-only" type="button" aria-label="Back to the list" onClick={navigateBack}>
        <Icon name="back" />
      </button>
      <div class="heading" onClick={details}>
        <h1 class="title">
          <bdi>{nameOf(group)}</bdi>
        </h1>
        <p class="meta">
          <Icon name="clock" />
          {lifetimeText(group.lifetime.effective)} · {encryptionText(group)}
        </p>
      </div>
      <button
        class="icon"
        type="button"
        aria-label="Search in this conversation"
        onClick={() => openDialog(() => <SearchDialog groupId={group.groupId} />)}
      >
        <Icon name="search" />
      </button>
      <button class="icon" type="button" aria-label="About this conversation" onClick={details}>
        <Icon name="more" />
      </button>
    </header>
  );
}

function encryptionText({ encryption, members }: Group): string {
  if (encryption.status === "waiting") return "waiting for keys";
  if (encryption.status === "replaced") return "replaced by another device";
  const others = members.length - 1;
  return others > 0 ? `encrypted, ${encryption.verified} of ${others} verified` : "encrypted";
}

/** Problems with keys, some of which hold messages back until the user decides. */
function Warnings({ group }: { group: Group }) {
  const { changed, strangers, status } = group.encryption;
  const keyless = group.members.filter((each) => !each.isSelf && !each.key).map((each) => displayName(each.username));
  return (
    <div class="decisions">
      {status === "replaced" && (
        <div class="decision danger" role="alert">
          <p>Another device is using your account. Messages from this device are not sent.</p>
          <div class="actions">
            <button class="small" type="button" onClick={confirmUse}>
              Use this device again
            </button>
          </div>
        </div>
      )}
      {status === "waiting" && (
        <div class="decision" role="status">
          <p>This device is joining the group. Your messages are sent once it has joined.</p>
        </div>
      )}
      {changed.map((userId) => (
        <ChangedKey key={userId} group={group} userId={userId} />
      ))}
      {strangers.length > 0 && (
        <div class="decision warning" role="status">
          <p>
            {joinNames(strangers.map((each) => displayName(each.username)))} can read messages but{" "}
            {strangers.length === 1 ? "is not a member" : "are not members"}. An admin's device removes this access when
            it is online.
          </p>
        </div>
      )}
      {keyless.length > 0 && status === "encrypted" && (
        <div class="decision" role="status">
          <p>{joinNames(keyless)} cannot read messages yet, and will not be able to read those sent until then.</p>
        </div>
      )}
    </div>
  );
}

function confirmUse(): void {
  confirmAction({
    title: "Use this device again?",
    text: "This browser creates new keys and replaces the other device. Others see that your key changed. If you have no other device, someone knows your password: change it first.",
    action: "Reset keys",
    act: () => engine.resetKeys(),
  });
}

function ChangedKey({ group, userId }: { group: Group; userId: string }) {
  const member = group.members.find((each) => each.userId === userId);
  if (!member?.key) return null;
  const { username, key } = member;
  const { fingerprint } = key;
  return (
    <div class="decision danger" role="alert">
      <p>
        <strong>{displayName(username)}'s key changed</strong>
        {key.wasVerified ? " after you verified it" : ""}: a new or reset device, or someone intercepting messages. Your
        messages{group.waiting > 0 ? ` (${group.waiting})` : ""} are held back until you decide.
      </p>
      <div class="actions">
        <button
          class="small primary"
          type="button"
          onClick={() => openDialog(() => <CompareDialog groupId={group.groupId} userId={userId} />)}
        >
          Compare keys
        </button>
        <Action class="small" act={() => engine.acceptKey(userId, fingerprint)}>
          Accept without comparing
        </Action>
      </div>
    </div>
  );
}

function EmptyState({ group }: { group: Group }) {
  return (
    <div class="empty">
      <p>No messages yet. Messages are {lifetimeText(group.lifetime.effective)}.</p>
      {group.members.length < 2 && <OnlyMember group={group} />}
    </div>
  );
}

/** Shows pending invites to the only member, and lets admins invite. */
function OnlyMember({ group }: { group: Group }) {
  const { groupId, role } = group;
  const [invited, setInvited] = useState<readonly string[]>([]);
  const read = () => {
    if (role !== "admin") return;
    engine.administration(groupId).then(
      ({ invites }) => setInvited(invites.map((each) => displayName(each.username))),
      () => undefined, // optional information
    );
  };
  useEffect(read, [groupId, role]);
  return (
    <>
      <p>
        {invited.length
          ? `Waiting for ${joinNames(invited)} to accept the invite.`
          : "You are the only member."}{" "}
        New members can read only what is sent after they join.
      </p>
      {role === "admin" && <InviteForm groupId={groupId} done={read} />}
    </>
  );
}
