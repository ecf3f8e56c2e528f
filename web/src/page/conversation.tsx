/** The open conversation: its heading, what has to be decided about it, its messages and the field. */

import { useEffect, useState } from "preact/hooks";
import type { Conversation as Shown, Group, Message, View } from "../engine/api";
import { Composer } from "./composer";
import { Action, ask } from "./dialog";
import { GroupDialog } from "./group";
import { Icon } from "./icons";
import { InviteForm } from "./inviting";
import { CompareDialog } from "./compare";
import { leave } from "./place";
import { SearchDialog } from "./search";
import { nameOf } from "./sidebar";
import { engine, openDialog } from "./store";
import { called, count, listed } from "./text";
import { policy } from "./time";
import { Timeline } from "./timeline";

interface Props {
  view: View;
  group: Group;
  conversation: Shown | null;
}

export function Conversation({ view, group, conversation }: Props) {
  const [replyTo, setReplyTo] = useState<Message | null>(null);
  useEffect(() => setReplyTo(null), [group.groupId]);
  const isHere = replyTo && conversation?.messages.some((each) => each.number === replyTo.number);
  const isEmpty = conversation && !conversation.messages.length && !conversation.sending.length;
  return (
    <section class="conversation" aria-label={nameOf(group)}>
      <Heading group={group} />
      <Decisions group={group} />
      {conversation && view.clockOffset !== null ? (
        <Timeline key={group.groupId} view={view} group={group} conversation={conversation} onReply={setReplyTo}>
          {isEmpty && conversation.isComplete && <Beginning group={group} />}
        </Timeline>
      ) : (
        <div class="timeline waiting" role="status">
          {view.clockOffset === null && view.connection.state === "offline"
            ? "Without the server's time nothing that expires can be shown."
            : "Just a moment…"}
        </div>
      )}
      {conversation && (
        <Composer
          key={group.groupId}
          group={group}
          draft={conversation.draft}
          replyTo={isHere ? replyTo : null}
          onReplied={() => setReplyTo(null)}
        />
      )}
    </section>
  );
}

function Heading({ group }: { group: Group }) {
  const details = () => openDialog(() => <GroupDialog groupId={group.groupId} />);
  return (
    <header class="bar">
      <button class="icon narrow-only" type="button" aria-label="Back to the list" onClick={leave}>
        <Icon name="back" />
      </button>
      <div class="heading" onClick={details}>
        <h1 class="title">
          <bdi>{nameOf(group)}</bdi>
        </h1>
        <p class="meta">
          <Icon name="clock" />
          {policy(group.lifetime.effective)} · {secrecy(group)}
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

function secrecy({ encryption, members }: Group): string {
  if (encryption.standing === "waiting") return "waiting for the keys";
  if (encryption.standing === "replaced") return "another device is in";
  const others = members.length - 1;
  return others > 0 ? `encrypted, ${encryption.verified} of ${others} verified` : "encrypted";
}

/** What holds something back until the user has decided. */
function Decisions({ group }: { group: Group }) {
  const { changed, strangers, standing } = group.encryption;
  const blind = group.members.filter((each) => !each.isSelf && !each.key).map((each) => called(each.username));
  return (
    <div class="decisions">
      {standing === "replaced" && (
        <div class="decision danger" role="alert">
          <p>Another device of yours has taken this one's place. What you type is not sent.</p>
          <div class="actions">
            <button class="small" type="button" onClick={bringBack}>
              Use this device again
            </button>
          </div>
        </div>
      )}
      {standing === "waiting" && (
        <div class="decision" role="status">
          <p>This device is coming in. What you type is sent then.</p>
        </div>
      )}
      {changed.map((userId) => (
        <ChangedKey key={userId} group={group} userId={userId} />
      ))}
      {strangers.length > 0 && (
        <div class="decision warning" role="status">
          <p>
            {listed(strangers.map((each) => called(each.username)))} can read, and {isOrAre(strangers.length)} no
            member. An admin's device takes the keys away once it is online.
          </p>
        </div>
      )}
      {blind.length > 0 && standing === "encrypted" && (
        <div class="decision" role="status">
          <p>{listed(blind)} cannot read yet: what is said now stays unread there.</p>
        </div>
      )}
    </div>
  );
}

const isOrAre = (number: number) => (number === 1 ? "is" : "are");

function bringBack(): void {
  ask({
    title: "Use this device again?",
    text: "This browser makes new keys and takes the place of the other device. The others are told that your key has changed. If you have no other device, somebody has your password: change it first.",
    action: "Make new keys",
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
        <strong>{called(username)} has another key</strong> than the one you knew
        {key.wasVerified ? " and had compared" : ""}: a new device, or somebody between you. What you type here waits
        {group.waiting > 0 ? ` (${count(group.waiting, "message")})` : ""} until you decide.
      </p>
      <div class="actions">
        <button
          class="small primary"
          type="button"
          onClick={() => openDialog(() => <CompareDialog groupId={group.groupId} userId={userId} />)}
        >
          Compare
        </button>
        <Action class="small" act={() => engine.acceptKey(userId, fingerprint)}>
          Take it uncompared
        </Action>
      </div>
    </div>
  );
}

/** Shown where nothing was said yet. */
function Beginning({ group }: { group: Group }) {
  return (
    <div class="empty">
      <p>Nothing is here. Messages are {policy(group.lifetime.effective)}.</p>
      {group.members.length < 2 && <Alone group={group} />}
    </div>
  );
}

/** Says who is invited, where nobody else is in yet, and lets admins invite. */
function Alone({ group }: { group: Group }) {
  const { groupId, role } = group;
  const [invited, setInvited] = useState<readonly string[]>([]);
  const read = () => {
    if (role !== "admin") return;
    engine.administration(groupId).then(
      ({ invites }) => setInvited(invites.map((each) => called(each.username))),
      () => undefined, // it only helps
    );
  };
  useEffect(read, [groupId, role]);
  return (
    <>
      <p>
        {invited.length
          ? `${listed(invited)} ${invited.length === 1 ? "is" : "are"} invited and not in yet.`
          : "Nobody else is in here yet."}{" "}
        Who comes in reads what is said from then on, and nothing that was said before.
      </p>
      {role === "admin" && <InviteForm groupId={groupId} done={read} />}
    </>
  );
}
