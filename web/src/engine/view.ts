/** Builds the view of the page. */

import type * as api from "./api";
import type { Id } from "./api";
import type { Encryption } from "./encryption/encryption";
import type { Entry, GroupHistory, History } from "./history";
import type { Mirror } from "./mirror";
import { directNames } from "./names";
import type { SendQueue } from "./sending";
import type { ServerClock } from "./server/clock";
import type { ListedGroup } from "./server/wire";

/** The window of the open conversation. `from`: the first number that is shown; `to`: the last; null: up to the newest. */
export interface ViewWindow {
  groupId: Id;
  from: number;
  to: number | null;
  around: number | null;
  unreadFrom: number | null;
  texts: Map<number, TextPreview>;
}

/** The beginning of a text, so that views stay small. `omitted`: how many characters it lacks. */
export interface TextPreview {
  text: string | null;
  omitted: number;
}

const MAX_PREVIEW = 16_000;

export function preview(text: string | null): TextPreview {
  const shown = text?.slice(0, MAX_PREVIEW) ?? null;
  return { text: shown, omitted: (text?.length ?? 0) - (shown?.length ?? 0) };
}

/** The parts of an account that the view shows. */
export interface Parts {
  userId: Id;
  history: History;
  keys: Encryption;
  mirror: Mirror;
  sending: SendQueue;
  clock: ServerClock;
  notices: ReadonlyMap<Id, readonly api.Notice[]>;
  drafts: ReadonlyMap<Id, string>;
  /** Names of former members. */
  names: ReadonlyMap<Id, string>;
}

export const titleOf = (group: ListedGroup, userId: Id): string => {
  const other = directOf(group, userId);
  const member = group.members.find((each) => each.user_id === other);
  return member ? member.alias || member.username : group.alias || group.group_name;
};

/** Returns the other member of a group for direct messages; null for other groups. */
export function directOf(group: ListedGroup, userId: Id): Id | null {
  const [one, other] = group.members;
  if (!one || !other || group.members.length > 2 || group.visibility !== "private") return null;
  const names = [...directNames(one.username, other.username), ...directNames(other.username, one.username)];
  return names.includes(group.group_name) ? (one.user_id === userId ? other.user_id : one.user_id) : null;
}

export function groupView(parts: Parts, group: ListedGroup): api.Group {
  const { userId, history, keys, mirror, sending } = parts;
  const groupId = group.group_id;
  const status = keys.status(groupId);
  const messages = history.group(groupId);
  const unread = history.shown(groupId).filter((each) => messages.isUnread(each, userId));
  const retention = mirror.retentions.get(groupId);
  const memberKeys = [...status.keys];
  return {
    groupId,
    name: group.group_name,
    title: titleOf(group, userId),
    direct: directOf(group, userId),
    role: group.members.find((each) => each.user_id === userId)?.role ?? "member",
    visibility: group.visibility,
    members: group.members.map((each) => ({
      userId: each.user_id,
      username: each.username,
      alias: each.alias,
      role: each.role,
      isSelf: each.user_id === userId,
      key:
        each.user_id === userId
          ? { fingerprint: keys.ownKeys.fingerprint, trust: "verified", former: "", wasVerified: false }
          : (status.keys.get(each.user_id) ?? null),
    })),
    unread: unread.length,
    mentions: unread.filter((each) => each.isMention || group.members.length === 2).length,
    newestAt: history.shown(groupId).at(-1)?.createdAt ?? 0,
    lifetime: {
      effective: messages.expiry,
      group: retention?.group_expiry_seconds ?? -1,
      server: retention?.server_retention_seconds ?? -1,
      isHeld: retention?.legal_hold ?? false,
    },
    encryption: {
      status: status.state,
      changed: memberKeys.flatMap(([id, key]) => (key.trust === "changed" ? [id] : [])),
      strangers: status.strangers.map((id) => ({ userId: id, username: nameOf(parts, groupId, id) })),
      verified: memberKeys.filter(([, key]) => key.trust === "verified").length,
    },
    waiting: sending.shown(groupId).length,
  };
}

export function conversationView(parts: Parts, opened: ViewWindow): api.Conversation {
  const { groupId, around, unreadFrom, texts } = opened;
  const { history, mirror, sending } = parts;
  const group = history.group(groupId);
  const all = history.shown(groupId);
  const shown = inWindow(all, opened);
  return {
    groupId,
    messages: shown.map((each) => messageView(parts, group, each, texts.get(each.number) ?? preview(null))),
    hasEarlier: all.length > 0 && all[0]!.number < opened.from,
    hasLater: opened.to !== null && all.length > 0 && all.at(-1)!.number > opened.to,
    unreadFrom,
    around,
    sending: sending.shown(groupId).map((each) => ({ ...each, text: preview(each.text).text ?? "" })),
    notices: parts.notices.get(groupId) ?? [],
    draft: parts.drafts.get(groupId) ?? "",
    isComplete: mirror.isCaughtUp(groupId),
  };
}

export const inWindow = (entries: readonly Entry[], { from, to }: ViewWindow): Entry[] =>
  entries.filter((each) => each.number >= from && (to === null || each.number <= to));

function messageView(parts: Parts, group: GroupHistory, entry: Entry, { text, omitted }: TextPreview): api.Message {
  const goneAt = group.goneAt(entry);
  return {
    number: entry.number,
    senderId: entry.senderId,
    sender: nameOf(parts, group.groupId, entry.senderId),
    isOwn: entry.senderId === parts.userId,
    text: entry.isReadable ? text : null,
    omitted,
    createdAt: entry.createdAt,
    goneAt: goneAt === Infinity ? null : goneAt,
    selfDestructSeconds: entry.selfDestructSeconds,
    isUnread: group.isUnread(entry, parts.userId),
    isMention: entry.isMention,
  };
}

/** Returns the name of a member or former member; "" if it is not known. */
export function nameOf({ mirror, names }: Pick<Parts, "mirror" | "names">, groupId: Id, userId: Id): string {
  const member = mirror.listed.get(groupId)?.members.find((each) => each.user_id === userId);
  return member?.username ?? names.get(userId) ?? "";
}
