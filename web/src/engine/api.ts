/**
 * The interface between the page and the Worker that owns the account.
 *
 * The page sends commands; each gets one reply, a value or a fault. The Worker pushes an immutable view after each
 * change, and alerts for notifications. Ids are UUIDs in lower case, fingerprints are 64 hexadecimal digits. Times are
 * Unix seconds of the server's clock unless stated otherwise.
 */

export type Id = string;

/** The commands. A failed command rejects its promise with a `CommandError`. */
export interface Engine {
  /** Creates an account and logs in. `registrationToken`: if the server requires one (fault `forbidden`). */
  register(username: string, password: string, registrationToken?: string): Promise<void>;
  /**
   * Logs in. Returns "otherDevice", and does nothing, if the account has keys on another device that this one would
   * replace: ask the user, and call again with `replaceDevice`.
   */
  login(username: string, password: string, replaceDevice?: boolean): Promise<"in" | "otherDevice">;
  /** Ends the session and erases all local data, also without a connection. */
  logout(): Promise<void>;
  /** Creates new keys: if others may have the old ones, or another device has replaced this one. */
  resetKeys(): Promise<void>;

  /** Opens a conversation at the first unread message or at message `around`; null closes it. */
  open(groupId: Id | null, around?: number): Promise<void>;
  /** Moves the window of the open conversation by up to 100 messages. */
  loadMore(towards: "earlier" | "later"): Promise<void>;
  /** Back to the newest messages. */
  showNewest(): Promise<void>;
  /** Returns the whole text of a message of the open conversation; null if it is gone or unreadable. */
  fullText(number: number): Promise<string | null>;
  /** Marks messages of the open conversation as seen: timers start, and the unread count falls. */
  markSeen(groupId: Id, numbers: number[]): Promise<void>;
  /** Marks all messages of a group as read, except self-destructing ones. */
  markAllRead(groupId: Id): Promise<void>;
  /** Searches local messages, newest first, at most 100. `groupId`: only in this group. */
  search(text: string, groupId?: Id): Promise<SearchResult[]>;
  /** Stores the draft of a group; "" deletes it. */
  saveDraft(groupId: Id, text: string): Promise<void>;

  /** Sends a message. It is in the view's `sending` at once, and sent exactly once, also after a reload. */
  send(groupId: Id, text: string, options?: SendOptions): Promise<void>;
  /** Retries failed messages. */
  retry(groupId: Id): Promise<void>;
  /** Discards a message that is waiting or failed. */
  discard(groupId: Id, sendId: Id): Promise<void>;
  /** Takes a message back for everyone. */
  takeBack(groupId: Id, number: number): Promise<void>;

  /** Creates a group and returns its id. `name`: of A-Z, a-z, 0-9, _; derived from the title by default. */
  createGroup(title: string, name?: string): Promise<Id>;
  /** Returns the group for direct messages with a user; creates it if necessary. */
  openDirect(username: string): Promise<Id>;
  findPublic(pattern: string): Promise<PublicGroup[]>;
  joinPublic(groupId: Id): Promise<void>;
  accept(inviteId: Id): Promise<void>;
  decline(inviteId: Id): Promise<void>;
  leave(groupId: Id): Promise<void>;
  /** Deletes a group for everyone. */
  deleteGroup(groupId: Id): Promise<void>;
  invite(groupId: Id, username: string): Promise<void>;
  cancelInvite(groupId: Id, userId: Id): Promise<void>;
  /** Pending invites and bans of a group, for its admins. */
  administration(groupId: Id): Promise<Administration>;
  removeMember(groupId: Id, userId: Id): Promise<void>;
  ban(groupId: Id, userId: Id): Promise<void>;
  unban(groupId: Id, userId: Id): Promise<void>;
  setRole(groupId: Id, userId: Id, role: Role): Promise<void>;
  /** Absent fields do not change. */
  changeGroup(groupId: Id, change: { title?: string; name?: string; visibility?: Visibility }): Promise<void>;
  /** Sets the lifetime of messages: -1 server default, 0 until all members have fetched, otherwise seconds. */
  setExpiry(groupId: Id, seconds: number): Promise<void>;
  /** Returns what `setExpiry` would hide at once, without changing anything. */
  previewExpiry(groupId: Id, seconds: number): Promise<DryRun>;

  /** Returns the code that two users compare: both see the same. */
  comparisonCode(userId: Id, fingerprint: string): Promise<Code>;
  /** Marks a key as verified. */
  verify(userId: Id, fingerprint: string): Promise<void>;
  /** Accepts a changed key without comparing it; messages that were held back are sent. */
  acceptKey(userId: Id, fingerprint: string): Promise<void>;

  setAlias(alias: string): Promise<void>;
  /** Changes the password, which ends all sessions, and logs in again. */
  changePassword(current: string, next: string): Promise<void>;
  /** Deletes the account, and erases all local data. */
  deleteAccount(password: string): Promise<void>;
  /** Reconnects now: the network is back, or the page is visible again. */
  reconnect(): Promise<void>;
}

export interface SendOptions {
  /** 1 to 31,536,000; absent: no timer. */
  selfDestructSeconds?: number;
  /** The number of the message that this one replies to. */
  replyTo?: number;
}

export type Role = "admin" | "member";
export type Visibility = "private" | "public";

/** The state to show. */
export interface View {
  /** `taken`: another tab uses the account. `failed`: the browser's storage cannot be used; `fault` says why. */
  phase: "starting" | "taken" | "failed" | "out" | "in";
  /** An error to show; "": none. */
  fault: string;
  account: Account | null;
  connection: Connection;
  /** Server time minus `Date.now() / 1000`; null: not known yet, and no message is shown. */
  clockOffset: number | null;
  /** Sorted by title. */
  groups: readonly Group[];
  invites: readonly Invite[];
  /** The open conversation. */
  conversation: Conversation | null;
}

export interface Account {
  userId: Id;
  username: string;
  alias: string;
  fingerprint: string;
}

export interface Connection {
  state: "connecting" | "online" | "offline";
  /** Why it is offline, or why no messages are fetched although it is online, to show. */
  why: string;
  /** The time of the next attempt, by `Date.now()`; 0: none is scheduled. */
  retryAt: number;
}

export interface Group {
  groupId: Id;
  name: string;
  title: string;
  /** The other member of a group for direct messages; null for other groups. */
  direct: Id | null;
  role: Role;
  visibility: Visibility;
  members: readonly Member[];
  unread: number;
  /** Unread messages that mention the user. */
  mentions: number;
  /** When the newest message was sent; 0: there is none. */
  newestAt: number;
  lifetime: Lifetime;
  encryption: Encryption;
  /** Own messages that the server does not have yet. */
  waiting: number;
}

export interface Member {
  userId: Id;
  username: string;
  alias: string;
  role: Role;
  isSelf: boolean;
  /** The key in this group; null: this member has none yet, and cannot read messages. */
  key: Key | null;
}

export interface Key {
  fingerprint: string;
  /** `changed`: it differs from the known key; nothing is sent until the user verifies or accepts it. */
  trust: "unknown" | "verified" | "changed";
  /** The fingerprint of the known key, if it changed; otherwise "". */
  former: string;
  /** The former key was verified. */
  wasVerified: boolean;
}

export interface Lifetime {
  /** The lifetime that applies: -1 forever, 0 until all members have fetched, otherwise seconds. */
  effective: number;
  /** The group's own setting, and the server's, in the same form. */
  group: number;
  server: number;
  isHeld: boolean;
}

export interface Encryption {
  /** `waiting`: the keys are not there yet. `replaced`: another device has replaced this one; see `resetKeys`. */
  status: "encrypted" | "waiting" | "replaced";
  /** Members whose keys changed: messages are held back until the user has decided on each. */
  changed: readonly Id[];
  /** Users who have keys but are not members, by the server's list. */
  strangers: readonly { userId: Id; username: string }[];
  verified: number;
}

export interface Invite {
  inviteId: Id;
  groupId: Id;
  name: string;
  title: string;
  inviter: string;
  createdAt: number;
}

export interface Conversation {
  groupId: Id;
  /** A window of the local messages, ascending by number; at most 600. */
  messages: readonly Message[];
  hasEarlier: boolean;
  hasLater: boolean;
  /** The first unread message when the conversation was opened; null: there was none. */
  unreadFrom: number | null;
  /** The message that was opened; null: none. */
  around: number | null;
  sending: readonly Sending[];
  notices: readonly Notice[];
  draft: string;
  /** False until all messages on the server have been read. */
  isComplete: boolean;
}

export interface Message {
  number: number;
  senderId: Id;
  /** "": the sender has left, and the name is not known. */
  sender: string;
  isOwn: boolean;
  /** The beginning, for a long text; see `fullText`. Null: it cannot be read. */
  text: string | null;
  /** How many characters `text` lacks. */
  omitted: number;
  createdAt: number;
  /** The first second at which it is not shown. Null: it does not expire. */
  goneAt: number | null;
  /** Its lifetime after it was seen; 0: it does not self-destruct. */
  selfDestructSeconds: number;
  isUnread: boolean;
  /** It mentions or replies to the user. */
  isMention: boolean;
}

export interface Sending {
  sendId: Id;
  text: string;
  selfDestructSeconds: number;
  /** `held`: held back by a changed key. `failed`: `why` is the error; see `retry` and `discard`. */
  state: "waiting" | "held" | "failed";
  why: string;
}

/** An event of a group to show, in one sentence. In memory only, at most 50 per group. */
export interface Notice {
  at: number;
  kind: "info" | "warning" | "danger";
  text: string;
}

export interface SearchResult {
  groupId: Id;
  number: number;
  sender: string;
  text: string;
  createdAt: number;
  goneAt: number | null;
}

export interface PublicGroup {
  groupId: Id;
  name: string;
  title: string;
  memberCount: number;
}

export interface Administration {
  invites: readonly { userId: Id; username: string; createdAt: number }[];
  banned: readonly { userId: Id; username: string; bannedAt: number }[];
}

export interface DryRun {
  /** How many messages would be hidden at once. */
  messagesExpiring: number;
  /** When the oldest of them was sent; 0: none. */
  oldestExpiring: number;
  /** The lifetime that would apply: -1, 0 or seconds. */
  effective: number;
}

export interface Code {
  /** 6 groups of 5. */
  digits: readonly string[];
  /** 12 words: the same code as the digits. */
  words: readonly string[];
}

/** Why a command failed. */
export interface Fault {
  /**
   * `forbidden`: registration is closed or needs a token, or a quota is reached. `offline`: no response; the command
   * may have been executed.
   */
  kind:
    | "credentials"
    | "conflict"
    | "forbidden"
    | "missing"
    | "invalid"
    | "busy"
    | "offline"
    | "encryption"
    | "storage"
    | "unspecified";
  /** The error to show. */
  text: string;
  /** Errors of single fields of the request, by the server's names. */
  fields: Readonly<Record<string, readonly string[]>>;
}

/** The error of a failed command; `message` is the text of the fault. */
export class CommandError extends Error {
  constructor(readonly fault: Fault) {
    super(fault.text);
  }
}

/** A reason for a notification. Never for messages from before the connection. */
export interface Alert {
  groupId: Id;
  title: string;
  sender: string;
  /** "" for self-destructing messages. */
  text: string;
  reason: "mention" | "direct" | "message" | "invite";
}

// Messages between the page and the Worker

export interface Request {
  id: number;
  command: keyof Engine;
  args: unknown[];
}

export type Reply =
  | { type: "result"; id: number; value: unknown }
  | { type: "fault"; id: number; fault: Fault }
  | { type: "view"; view: View }
  | { type: "alert"; alert: Alert };
