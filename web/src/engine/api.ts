/**
 * The seam between the page and the Worker that has the account.
 *
 * The page sends commands; each is answered once, by a value or by a fault. The Worker pushes one immutable view after
 * each change, and calls for notifications. Ids are UUIDs in lower case, fingerprints are 64 hexadecimal digits. Times
 * are Unix seconds of the server's clock unless their names say otherwise.
 */

export type Id = string;

/** The commands. A promise is rejected with a `Failed`. */
export interface Engine {
  /** Creates an account and logs in. `registrationToken`: where the server asks for one (fault `forbidden`). */
  register(username: string, password: string, registrationToken?: string): Promise<void>;
  /**
   * Logs in. `otherDevice`: nothing was done, since the account has keys on another device, which this one would put
   * out: ask, and call again with `evenSo`.
   */
  login(username: string, password: string, evenSo?: boolean): Promise<"in" | "otherDevice">;
  /** Ends the session and erases all that is here, also without a connection. */
  logout(): Promise<void>;
  /** Begins with new keys: where others may have the old ones, or another device has taken this one's place. */
  resetKeys(): Promise<void>;

  /** Opens a conversation, at the unread ones or around a number; null: none is open. */
  open(groupId: Id | null, around?: number): Promise<void>;
  /** Moves the window of the open conversation by up to 100 messages. */
  more(towards: "earlier" | "later"): Promise<void>;
  /** Back to the newest messages. */
  toEnd(): Promise<void>;
  /** The whole text of a message of the open conversation; null: it is gone, or cannot be read. */
  whole(number: number): Promise<string | null>;
  /** These messages of the open conversation were really seen: timers begin, and the unread count falls. */
  seen(groupId: Id, numbers: number[]): Promise<void>;
  /** Puts aside all that is unread in a group, except what destroys itself. */
  readAll(groupId: Id): Promise<void>;
  /** Finds what was said and is here, the newest first, 100 at most. `groupId`: only there. */
  search(text: string, groupId?: Id): Promise<Found[]>;
  /** Keeps what is typed in a group, so that it is there after a reload. */
  draft(groupId: Id, text: string): Promise<void>;

  /** Sends a text. It is in the view's `sending` at once and sent once, also after a reload. */
  send(groupId: Id, text: string, options?: SendOptions): Promise<void>;
  /** Tries again what was not sent. */
  retry(groupId: Id): Promise<void>;
  /** Drops a text that waits or was not sent. */
  discard(groupId: Id, sendId: Id): Promise<void>;
  /** Takes a message back for everybody. */
  takeBack(groupId: Id, number: number): Promise<void>;

  /** Creates a group; answers its id. `name`: of A-Z, a-z, 0-9, _; absent: made from the title. */
  createGroup(title: string, name?: string): Promise<Id>;
  /** Opens or creates the group of two with a person; answers its id. */
  direct(username: string): Promise<Id>;
  findPublic(pattern: string): Promise<PublicGroup[]>;
  joinPublic(groupId: Id): Promise<void>;
  accept(inviteId: Id): Promise<void>;
  decline(inviteId: Id): Promise<void>;
  leave(groupId: Id): Promise<void>;
  /** Deletes a group for everybody. */
  deleteGroup(groupId: Id): Promise<void>;
  invite(groupId: Id, username: string): Promise<void>;
  cancelInvite(groupId: Id, userId: Id): Promise<void>;
  /** Pending invites and bans of a group, for its admins. */
  administration(groupId: Id): Promise<Administration>;
  removeMember(groupId: Id, userId: Id): Promise<void>;
  ban(groupId: Id, userId: Id): Promise<void>;
  unban(groupId: Id, userId: Id): Promise<void>;
  setRole(groupId: Id, userId: Id, role: Role): Promise<void>;
  /** Absent fields stay as they are. */
  changeGroup(groupId: Id, change: { title?: string; name?: string; visibility?: Visibility }): Promise<void>;
  /** Sets how long messages live: -1 as the server says, 0 until all have fetched, else seconds. */
  setExpiry(groupId: Id, seconds: number): Promise<void>;
  /** What `setExpiry` would hide at once; nothing is changed. */
  tryExpiry(groupId: Id, seconds: number): Promise<DryRun>;

  /** The code that two people compare: the same on both sides. */
  code(userId: Id, fingerprint: string): Promise<Code>;
  /** Notes that a key was compared and is right. */
  verify(userId: Id, fingerprint: string): Promise<void>;
  /** Takes a changed key without having compared it; what waits is sent. */
  acceptKey(userId: Id, fingerprint: string): Promise<void>;

  setAlias(alias: string): Promise<void>;
  /** Ends all sessions, this one too, and logs in again with the new password. */
  changePassword(current: string, next: string): Promise<void>;
  /** Deletes the account, and erases all that is here. */
  deleteAccount(password: string): Promise<void>;
  /** Connects now: the network is back, or the page is visible again. */
  wake(): Promise<void>;
}

export interface SendOptions {
  /** 1 to 31,536,000; absent: it does not destroy itself. */
  selfDestructSeconds?: number;
  /** The number of the message that it answers. */
  replyTo?: number;
}

export type Role = "admin" | "member";
export type Visibility = "private" | "public";

/** What people see, as it is now. */
export interface View {
  /** `taken`: another tab has the account. `failed`: the storage of the browser cannot be used; `fault` says why. */
  phase: "starting" | "taken" | "failed" | "out" | "in";
  /** For people; "": nothing is wrong. */
  fault: string;
  account: Account | null;
  connection: Connection;
  /** Server time minus `Date.now() / 1000`; null: not known yet, and nothing that expires is shown. */
  clockOffset: number | null;
  /** By name of the title. */
  groups: readonly Group[];
  invites: readonly Invite[];
  /** The open one. */
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
  /** Why it is offline, for people. */
  why: string;
  /** When it is tried again: `Date.now()` then; 0: not by itself. */
  retryAt: number;
}

export interface Group {
  groupId: Id;
  name: string;
  title: string;
  /** The other one of a group of two that was made as a direct message; null: it is none. */
  direct: Id | null;
  role: Role;
  visibility: Visibility;
  members: readonly Member[];
  unread: number;
  /** How many of the unread ones mean the user. */
  mentions: number;
  /** When the newest message was sent; 0: none is here. */
  newestAt: number;
  lifetime: Lifetime;
  encryption: Encryption;
  /** Own texts that are not with the server yet. */
  waiting: number;
}

export interface Member {
  userId: Id;
  username: string;
  alias: string;
  role: Role;
  isSelf: boolean;
  /** The key in this group; null: this member has none yet and cannot read. */
  key: Key | null;
}

export interface Key {
  fingerprint: string;
  /** `changed`: another key than the one known before; nothing is sent until it is judged. */
  trust: "unknown" | "verified" | "changed";
  /** The fingerprint before it, if it changed; "" otherwise. */
  former: string;
  /** The former one had been compared. */
  wasVerified: boolean;
}

export interface Lifetime {
  /** What counts: -1 for ever, 0 until all have fetched, else seconds. */
  effective: number;
  /** The group's own setting, and the server's, in the same form. */
  group: number;
  server: number;
  isHeld: boolean;
}

export interface Encryption {
  /** `waiting`: the keys are on their way. `replaced`: another device has taken this one's place; see `resetKeys`. */
  standing: "encrypted" | "waiting" | "replaced";
  /** Members whose keys changed: sending is held back until each is judged. */
  changed: readonly Id[];
  /** Who has keys and is no member, by the server's list: id and name. */
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
  /** Part of the messages that are here, ascending by number; 600 at most. */
  messages: readonly Message[];
  hasEarlier: boolean;
  hasLater: boolean;
  /** The first unread number when the conversation was opened; null: there was none. */
  unreadFrom: number | null;
  /** The message to which `open` led; null: none. */
  around: number | null;
  sending: readonly Sending[];
  notices: readonly Notice[];
  draft: string;
  /** False until all that the server has was read. */
  isComplete: boolean;
}

export interface Message {
  number: number;
  senderId: Id;
  /** "": the sender has left and is not known by name. */
  sender: string;
  isOwn: boolean;
  /** Null: it cannot be read. Of a long one the beginning; see `whole`. */
  text: string | null;
  /** So many characters are not in `text`. */
  left: number;
  createdAt: number;
  /** The first second at which it is gone: not shown when `now >= goneAt`. Null: it stays. */
  goneAt: number | null;
  /** Its lifetime once it was seen; 0: it does not destroy itself. */
  selfDestructSeconds: number;
  isUnread: boolean;
  /** It means the user by @name or answers the user. */
  isMention: boolean;
}

export interface Sending {
  sendId: Id;
  text: string;
  selfDestructSeconds: number;
  /** `held`: a changed key holds it back. `failed`: `why` says what the server said; see `retry` and `discard`. */
  state: "waiting" | "held" | "failed";
  why: string;
}

/** What people should know of a group, in one sentence. In memory only; 50 a group. */
export interface Notice {
  at: number;
  kind: "info" | "warning" | "danger";
  text: string;
}

export interface Found {
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
  /** So many messages would be hidden at once. */
  messagesExpiring: number;
  /** When the oldest of them was sent; 0: none. */
  oldestExpiring: number;
  /** What would count then: -1, 0 or seconds. */
  effective: number;
}

export interface Code {
  /** 6 groups of 5. */
  digits: readonly string[];
  /** 12; the same code as the digits. */
  words: readonly string[];
}

/** Why a command failed. */
export interface Fault {
  /**
   * `forbidden`: registration is closed or needs a token, or a quota is reached. `offline`: no answer; it may have been
   * done. `held`: it waits for the user's decision about a changed key.
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
  /** For people. */
  text: string;
  /** What is wrong with single fields of the request, by the names of the server. */
  fields: Readonly<Record<string, readonly string[]>>;
}

/** What a rejected command has; `message` is the text of the fault. */
export class Failed extends Error {
  constructor(readonly fault: Fault) {
    super(fault.text);
  }
}

/** A reason to call the user, who may not be looking. Never of what was there before. */
export interface Call {
  groupId: Id;
  title: string;
  sender: string;
  /** "" for what destroys itself. */
  text: string;
  reason: "mention" | "direct" | "message" | "invite";
}

// What goes over the port

export interface Request {
  id: number;
  command: keyof Engine;
  args: unknown[];
}

export type Reply =
  | { type: "answer"; id: number; value: unknown }
  | { type: "fault"; id: number; fault: Fault }
  | { type: "view"; view: View }
  | { type: "call"; call: Call };
