/** The requests of the protocol that the chat uses. Each throws RefusedError and NoAnswerError. */

import type { Id, Role } from "../api";
import { base64, fromBase64 } from "../bytes";
import { hasCode, Code } from "./errors";
import { Transport } from "./transport";
import type { ListedGroup, ListedInvite, ListedWelcome, Retention, StoredMessage, User } from "./wire";

/** Messages per page. */
export const PAGE = 200;

const group = (groupId: Id, ...parts: (string | number)[]): string => ["/groups", groupId, ...parts].join("/");

export class Server {
  constructor(readonly transport: Transport) {}

  // Accounts

  register(username: string, password: string, registrationToken?: string): Promise<{ user_id: Id }> {
    const token = registrationToken ? { registration_token: registrationToken } : {};
    return this.post("/register", { username, password, ...token });
  }

  login(username: string, password: string): Promise<{ token: string; user_id: Id; username: string }> {
    return this.post("/login", { username, password });
  }

  logout(): Promise<void> {
    return this.post("/logout");
  }

  me(): Promise<User> {
    return this.get("/me");
  }

  setAlias(alias: string): Promise<void> {
    return this.transport.request({ method: "PATCH", path: "/me", body: { alias }, isRepeatable: true });
  }

  changePassword(current: string, next: string): Promise<void> {
    return this.post("/change-password", { current_password: current, new_password: next });
  }

  resetAccount(): Promise<void> {
    return this.post("/reset-account", undefined, true);
  }

  deleteAccount(password: string): Promise<void> {
    return this.post("/delete-account", { password });
  }

  user(username: string): Promise<User> {
    return this.get(`/users/${encodeURIComponent(username)}`);
  }

  userById(userId: Id): Promise<User> {
    return this.get(`/users/by-id/${userId}`);
  }

  uploadKeyPackages(regular: readonly Uint8Array[], lastResort: Uint8Array | null, fingerprint: string): Promise<void> {
    const entries = regular.map((each) => ({ data: base64(each), is_last_resort: false }));
    if (lastResort) entries.push({ data: base64(lastResort), is_last_resort: true });
    return this.post("/key-packages", { entries, signing_key_fingerprint: fingerprint }, true);
  }

  // Groups

  async createGroup(name: string, title: string): Promise<Id> {
    return (await this.post<{ group_id: Id }>("/groups", { group_name: name, alias: title })).group_id;
  }

  async groups(): Promise<ListedGroup[]> {
    return (await this.get<{ groups: ListedGroup[] }>("/groups")).groups;
  }

  async publicGroups(pattern: string) {
    type Found = { group_id: Id; group_name: string; alias: string; member_count: number };
    return (await this.get<{ groups: Found[] }>("/groups/public", { pattern })).groups;
  }

  update(groupId: Id, change: object): Promise<{ messages_expiring: number; oldest_expiring: number }> {
    return this.transport.request({ method: "PATCH", path: group(groupId), body: change, isRepeatable: true });
  }

  deleteGroup(groupId: Id): Promise<void> {
    return this.post(group(groupId, "delete"));
  }

  retention(groupId: Id, takenBackAfter?: number): Promise<Retention> {
    return this.get(group(groupId, "retention"), takenBackAfter === undefined ? {} : { taken_back_after: takenBackAfter });
  }

  retentionConfiguration(): Promise<{ policies: unknown; limits: unknown }> {
    return this.get("/retention/configuration");
  }

  /** Returns the group info, by which users join without an invite; empty if there is none. */
  async groupInfo(groupId: Id): Promise<Uint8Array> {
    try {
      return fromBase64((await this.get<{ group_info: string }>(group(groupId, "group-info"))).group_info);
    } catch (error) {
      if (hasCode(error, Code.NOT_FOUND)) return new Uint8Array();
      throw error;
    }
  }

  async join(groupId: Id): Promise<Uint8Array> {
    return fromBase64((await this.post<{ group_info: string }>(group(groupId, "join"))).group_info);
  }

  externalJoin(groupId: Id, commit: Uint8Array, mlsGroupId: string, info: Uint8Array): Promise<void> {
    const groupInfo = info.length > 0 ? { group_info: base64(info) } : {};
    const body = { commit_message: base64(commit), mls_group_id: mlsGroupId, ...groupInfo };
    return this.post(group(groupId, "external-join"), body);
  }

  commit(groupId: Id, parts: { commit?: Uint8Array; info?: Uint8Array; mlsGroupId?: string }): Promise<void> {
    const body: Record<string, string> = {};
    if (parts.commit) body.commit_message = base64(parts.commit);
    if (parts.info && parts.info.length > 0) body.group_info = base64(parts.info);
    if (parts.mlsGroupId) body.mls_group_id = parts.mlsGroupId;
    return this.post(group(groupId, "commit"), body, !parts.commit);
  }

  // Members

  async keyPackageFor(groupId: Id, userId: Id): Promise<Uint8Array> {
    type Taken = { member_key_packages: { user_id: Id; key_package_data: string }[] };
    const taken = await this.post<Taken>(group(groupId, "invite"), { user_ids: [userId] });
    const found = taken.member_key_packages.find((each) => each.user_id === userId);
    return found ? fromBase64(found.key_package_data) : new Uint8Array();
  }

  depositInvite(groupId: Id, userId: Id, commit: Uint8Array, welcome: Uint8Array, info: Uint8Array): Promise<void> {
    return this.post(group(groupId, "escrow-invite"), {
      invitee_id: userId,
      commit_message: base64(commit),
      welcome_message: base64(welcome),
      group_info: base64(info),
    });
  }

  async invitesOf(groupId: Id): Promise<ListedInvite[]> {
    return (await this.get<{ invites: ListedInvite[] }>(group(groupId, "invites"))).invites;
  }

  cancelInvite(groupId: Id, userId: Id): Promise<void> {
    return this.post(group(groupId, "cancel-invite"), { invitee_id: userId });
  }

  async invites(): Promise<ListedInvite[]> {
    return (await this.get<{ invites: ListedInvite[] }>("/invites")).invites;
  }

  answerInvite(inviteId: Id, answer: "accept" | "decline"): Promise<void> {
    return this.post(`/invites/${inviteId}/${answer}`);
  }

  async welcomes(): Promise<ListedWelcome[]> {
    return (await this.get<{ welcomes: ListedWelcome[] }>("/welcomes")).welcomes;
  }

  acceptWelcome(welcomeId: Id): Promise<void> {
    return this.post(`/welcomes/${welcomeId}/accept`, undefined, true);
  }

  /** Bytes may be empty: the member's keys are then removed later. */
  removeMember(how: "remove" | "ban", groupId: Id, userId: Id, commit: Uint8Array, info: Uint8Array): Promise<void> {
    const body: Record<string, string> = { user_id: userId };
    if (commit.length > 0) body.commit_message = base64(commit);
    if (info.length > 0) body.group_info = base64(info);
    return this.post(group(groupId, how), body);
  }

  unban(groupId: Id, userId: Id): Promise<void> {
    return this.post(group(groupId, "unban"), { user_id: userId });
  }

  async banned(groupId: Id): Promise<(User & { banned_at: number })[]> {
    return (await this.get<{ users: (User & { banned_at: number })[] }>(group(groupId, "banned"))).users;
  }

  setRole(groupId: Id, userId: Id, role: Role): Promise<void> {
    return this.post(group(groupId, role === "admin" ? "promote" : "demote"), { user_id: userId });
  }

  leave(groupId: Id): Promise<void> {
    return this.post(group(groupId, "leave"), {});
  }

  // Messages

  /** Sends a message and returns its number. Requests with the same `sendId` store it once. */
  async send(groupId: Id, message: Uint8Array, sendId: Id, selfDestructSeconds: number): Promise<number> {
    const timer = selfDestructSeconds > 0 ? { self_destruct_seconds: selfDestructSeconds } : {};
    const body = { mls_message: base64(message), send_id: sendId, ...timer };
    return (await this.post<{ sequence_num: number }>(group(groupId, "messages"), body, true)).sequence_num;
  }

  async messages(groupId: Id, after: number, includeRedacted = false): Promise<StoredMessage[]> {
    const query = { after, limit: PAGE, confirm: "next", ...(includeRedacted ? { include_redacted: true } : {}) };
    return (await this.get<{ messages: StoredMessage[] }>(group(groupId, "messages"), query)).messages;
  }

  takeBack(groupId: Id, number: number): Promise<void> {
    return this.transport.request({ method: "DELETE", path: group(groupId, "messages", number), isRepeatable: true });
  }

  read(groupId: Id, upTo: number): Promise<void> {
    return this.post(group(groupId, "read"), { sequence_num: upTo }, true);
  }

  private get<T>(path: string, query?: Record<string, string | number | boolean>): Promise<T> {
    return this.transport.request<T>({ method: "GET", path, query, isRepeatable: true });
  }

  private post<T>(path: string, body?: object, isRepeatable = false): Promise<T> {
    return this.transport.request<T>({ method: "POST", path, body, isRepeatable });
  }
}
