/** Puts together what the page shows. */

import type * as api from "./api";
import type { Id } from "./api";
import type { Encryption } from "./encryption/encryption";
import type { Entry, GroupHistory, History } from "./history";
import type { Mirror } from "./mirror";
import type { SendQueue } from "./sending";
import type { ServerClock } from "./server/clock";
import type { ListedGroup } from "./server/wire";

/** The open conversation: part of its messages. `from`: the first number that is shown; `to`: the last; null: the newest. */
export interface Opened {
  groupId: Id;
  from: number;
  to: number | null;
  around: number | null;
  unreadFrom: number | null;
  texts: Map<number, Shown>;
}

/** Of a text at first the beginning: all views together would be too much to hand to the page. `left`: characters. */
export interface Shown {
  text: string | null;
  left: number;
}

const MOST_SHOWN = 16_000;

export function beginningOf(text: string | null): Shown {
  const shown = text?.slice(0, MOST_SHOWN) ?? null;
  return { text: shown, left: (text?.length ?? 0) - (shown?.length ?? 0) };
}

/** All that is shown of an account. */
export interface Parts {
  userId: Id;
  history: History;
  keys: Encryption;
  mirror: Mirror;
  sending: SendQueue;
  clock: ServerClock;
  notices: ReadonlyMap<Id, readonly api.Notice[]>;
  drafts: ReadonlyMap<Id, string>;
  /** Names of people who are in no group any more. */
  names: ReadonlyMap<Id, string>;
}

export const titleOf = (group: ListedGroup, userId: Id): string => {
  const other = directOf(group, userId);
  const member = group.members.find((each) => each.user_id === other);
  return member ? member.alias || member.username : group.alias || group.group_name;
};

/** The name of the group of two for a direct message, as the terminal chat makes it. */
export const directName = (one: string, other: string): string => `${one}_and_${other}`.slice(0, LONGEST_NAME);

const LONGEST_NAME = 64;

/** The other one of a direct message; null: it is none. */
export function directOf(group: ListedGroup, userId: Id): Id | null {
  const [one, other] = group.members;
  if (!one || !other || group.members.length > 2 || group.visibility !== "private") return null;
  const names = [directName(one.username, other.username), directName(other.username, one.username)];
  return names.includes(group.group_name) ? (one.user_id === userId ? other.user_id : one.user_id) : null;
}

export function groupView(parts: Parts, group: ListedGroup): api.Group {
  const { userId, history, keys, mirror, sending } = parts;
  const groupId = group.group_id;
  const sight = keys.sight(groupId);
  const here = history.group(groupId);
  const unread = history.shown(groupId).filter((each) => here.isUnread(each, userId));
  const retention = mirror.retentions.get(groupId);
  const found = [...sight.keys];
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
          ? { fingerprint: keys.packages.fingerprint, trust: "verified", former: "", wasVerified: false }
          : (sight.keys.get(each.user_id) ?? null),
    })),
    unread: unread.length,
    mentions: unread.filter((each) => each.isMention || group.members.length === 2).length,
    newestAt: history.shown(groupId).at(-1)?.createdAt ?? 0,
    lifetime: {
      effective: here.expiry,
      group: retention?.group_expiry_seconds ?? -1,
      server: retention?.server_retention_seconds ?? -1,
      isHeld: retention?.legal_hold ?? false,
    },
    encryption: {
      standing: sight.standing,
      changed: found.flatMap(([id, key]) => (key.trust === "changed" ? [id] : [])),
      strangers: sight.strangers.map((id) => ({ userId: id, username: nameOf(parts, groupId, id) })),
      verified: found.filter(([, key]) => key.trust === "verified").length,
    },
    waiting: sending.shown(groupId).length,
  };
}

export function conversationView(parts: Parts, opened: Opened): api.Conversation {
  const { groupId, around, unreadFrom, texts } = opened;
  const { history, mirror, sending } = parts;
  const here = history.group(groupId);
  const all = history.shown(groupId);
  const shown = inWindow(all, opened);
  return {
    groupId,
    messages: shown.map((each) => messageView(parts, here, each, texts.get(each.number) ?? beginningOf(null))),
    hasEarlier: all.length > 0 && all[0]!.number < opened.from,
    hasLater: opened.to !== null && all.length > 0 && all.at(-1)!.number > opened.to,
    unreadFrom,
    around,
    sending: sending.shown(groupId).map((each) => ({ ...each, text: beginningOf(each.text).text ?? "" })),
    notices: parts.notices.get(groupId) ?? [],
    draft: parts.drafts.get(groupId) ?? "",
    isComplete: mirror.isCaughtUp(groupId),
  };
}

export const inWindow = (entries: readonly Entry[], { from, to }: Opened): Entry[] =>
  entries.filter((each) => each.number >= from && (to === null || each.number <= to));

function messageView(parts: Parts, here: GroupHistory, entry: Entry, { text, left }: Shown): api.Message {
  const goneAt = here.goneAt(entry);
  return {
    number: entry.number,
    senderId: entry.senderId,
    sender: nameOf(parts, here.groupId, entry.senderId),
    isOwn: entry.senderId === parts.userId,
    text: entry.isReadable ? text : null,
    left,
    createdAt: entry.createdAt,
    goneAt: goneAt === Infinity ? null : goneAt,
    selfDestructSeconds: entry.selfDestructSeconds,
    isUnread: here.isUnread(entry, parts.userId),
    isMention: entry.isMention,
  };
}

/** How somebody is called, as the server says; "": not known. */
export function nameOf({ mirror, names }: Pick<Parts, "mirror" | "names">, groupId: Id, userId: Id): string {
  const member = mirror.listed.get(groupId)?.members.find((each) => each.user_id === userId);
  return member?.username ?? names.get(userId) ?? "";
}
