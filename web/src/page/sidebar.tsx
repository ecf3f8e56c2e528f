/** The list: invites, then conversations with unread counts and message lifetimes. */

import type { Group, Invite, View } from "../engine/api";
import { AccountDialog } from "./account";
import { Action } from "./dialog";
import { Icon } from "./icons";
import { NewDialog } from "./new";
import { navigateTo } from "./place";
import { SearchDialog } from "./search";
import { engine, openDialog } from "./store";
import { displayName, count, singleLine } from "./text";
import { lifetimeText, shortTime, shortLifetime, useNow } from "./time";

export function Sidebar({ view, openId }: { view: View; openId: string | null }) {
  const { groups, invites } = view;
  return (
    <nav class="sidebar" aria-label="Conversations">
      <header class="bar">
        <h1>Conclave</h1>
        <button
          class="icon"
          type="button"
          aria-label="Search messages"
          onClick={() => openDialog(() => <SearchDialog />)}
        >
          <Icon name="search" />
        </button>
        <button class="icon" type="button" aria-label="Account" onClick={() => openDialog(() => <AccountDialog />)}>
          <Icon name="user" />
        </button>
        <button
          class="icon"
          type="button"
          aria-label="New conversation"
          onClick={() => openDialog(() => <NewDialog />)}
        >
          <Icon name="plus" />
        </button>
      </header>
      <ConnectionLine view={view} />
      <div class="scroll">
        {invites.length > 0 && (
          <ul class="invites" aria-label="Invites">
            {invites.map((invite) => (
              <InviteRow key={invite.inviteId} invite={invite} />
            ))}
          </ul>
        )}
        {groups.length > 0 && (
          <ul class="groups">
            {groups.map((group) => (
              <GroupRow key={group.groupId} group={group} isOpen={group.groupId === openId} />
            ))}
          </ul>
        )}
        {!groups.length && !invites.length && (
          <div class="empty">
            <p>No conversations yet.</p>
            <button class="primary" type="button" onClick={() => openDialog(() => <NewDialog />)}>
              Start a conversation
            </button>
          </div>
        )}
      </div>
    </nav>
  );
}

/** Returns the name of a group in the list: its title, or for a direct message the other member. */
export function nameOf(group: Group): string {
  const other = group.direct && group.members.find((each) => each.userId === group.direct);
  return other ? displayName(other.username) : singleLine(group.title || group.name);
}

function GroupRow({ group, isOpen }: { group: Group; isOpen: boolean }) {
  const { unread, mentions, lifetime, newestAt } = group;
  const hasWarning = group.encryption.changed.length > 0 || group.encryption.status === "replaced";
  return (
    <li>
      <button type="button" aria-current={isOpen ? "true" : undefined} onClick={() => navigateTo(group.groupId)}>
        <span class="face" aria-hidden="true">
          <Icon name={group.direct ? "user" : "people"} />
        </span>
        <span class="what">
          <bdi class={unread ? "title unread" : "title"}>{nameOf(group)}</bdi>
          <span class="meta">
            {hasWarning && <span class="danger-text">check keys · </span>}
            {group.waiting > 0 && `${group.waiting} pending · `}
            <span aria-hidden="true">
              <Icon name="clock" />
              {shortLifetime(lifetime.effective)}
            </span>
            <span class="sr">messages are {lifetimeText(lifetime.effective)}</span>
          </span>
        </span>
        <span class="side">
          <span class="when">{shortTime(newestAt, Math.floor(Date.now() / 1000))}</span>
          {unread > 0 && (
            <span class={mentions ? "badge mention" : "badge"}>
              <span aria-hidden="true">{(mentions ? `@${mentions} ` : "") + (unread > 999 ? "999+" : unread)}</span>
              <span class="sr">{`${count(unread, "unread message")}${mentions ? `, ${mentions} for you` : ""}`}</span>
            </span>
          )}
        </span>
      </button>
    </li>
  );
}

function InviteRow({ invite }: { invite: Invite }) {
  const { title, name, inviter, inviteId } = invite;
  const shown = title ? `${singleLine(title)} (${singleLine(name)})` : singleLine(name);
  return (
    <li>
      <p>
        <bdi>{displayName(inviter)}</bdi> invited you to <bdi>{shown}</bdi>
      </p>
      <div class="actions">
        <Action class="small" act={() => engine.decline(inviteId)} label={`Decline the invite to ${shown}`}>
          Decline
        </Action>
        <Action
          class="small primary"
          label={`Accept the invite to ${shown}`}
          act={async () => {
            await engine.accept(inviteId);
            navigateTo(invite.groupId);
          }}
        >
          Accept
        </Action>
      </div>
    </li>
  );
}

/** The problem with the connection, if there is one. A narrow screen shows it above the open conversation too. */
export function ConnectionLine({ view }: { view: View }) {
  const { state, why, retryAt } = view.connection;
  return (
    <div role="status" class="connection">
      {state === "connecting" && <p>Connecting…</p>}
      {state === "online" && why && <p>{why}</p>}
      {state === "offline" && (
        <p>
          {why || "No connection"}
          {retryAt > 0 && <RetryCountdown at={retryAt} />}{" "}
          <button class="link" type="button" onClick={() => engine.reconnect()}>
            Try now
          </button>
        </p>
      )}
    </div>
  );
}

function RetryCountdown({ at }: { at: number }) {
  useNow();
  const left = Math.ceil((at - Date.now()) / 1000);
  return left > 0 ? <span aria-hidden="true">{`, retrying in ${left} s`}</span> : null;
}
