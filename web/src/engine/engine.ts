/** The commands of the page. */

import type * as api from "./api";
import type { Id } from "./api";
import { SessionManager } from "./session";

export class Engine extends SessionManager implements api.Engine {
  // The open conversation

  async open(groupId: Id | null, around?: number): Promise<void> {
    const { conversation, mirror } = this.loggedIn;
    if (groupId === null || mirror.listed.has(groupId)) conversation.open(groupId, around);
    this.onChange();
  }

  async loadMore(towards: "earlier" | "later"): Promise<void> {
    this.loggedIn.conversation.loadMore(towards);
    this.onChange();
  }

  async showNewest(): Promise<void> {
    this.loggedIn.conversation.showNewest();
    this.onChange();
  }

  fullText(number: number): Promise<string | null> {
    return this.loggedIn.conversation.fullText(number);
  }

  markSeen(groupId: Id, numbers: number[]): Promise<void> {
    return this.loggedIn.markSeen(groupId, numbers);
  }

  markAllRead(groupId: Id): Promise<void> {
    return this.loggedIn.markSeen(groupId, null);
  }

  search(text: string, groupId?: Id): Promise<api.SearchResult[]> {
    return this.loggedIn.search(text, groupId);
  }

  saveDraft(groupId: Id, text: string): Promise<void> {
    return this.loggedIn.saveDraft(groupId, text);
  }

  async send(groupId: Id, text: string, options?: api.SendOptions): Promise<void> {
    await this.loggedIn.send(groupId, text, options);
    if (this.account?.conversation.groupId === groupId) await this.showNewest();
  }

  async retry(groupId: Id): Promise<void> {
    await this.loggedIn.sending.retry(groupId);
  }

  async discard(groupId: Id, sendId: Id): Promise<void> {
    await this.loggedIn.sending.discard(groupId, sendId);
  }

  takeBack(groupId: Id, number: number): Promise<void> {
    return this.loggedIn.takeBack(groupId, number);
  }

  // Groups

  createGroup(title: string, name?: string): Promise<Id> {
    return this.loggedIn.createGroup(title, name);
  }

  openDirect(username: string): Promise<Id> {
    return this.loggedIn.openDirect(username);
  }

  async findPublic(pattern: string): Promise<api.PublicGroup[]> {
    const found = await this.server.publicGroups(pattern);
    return found.map((each) => ({
      groupId: each.group_id,
      name: each.group_name,
      title: each.alias || each.group_name,
      memberCount: each.member_count,
    }));
  }

  joinPublic(groupId: Id): Promise<void> {
    return this.loggedIn.joinPublic(groupId);
  }

  accept(inviteId: Id): Promise<void> {
    return this.loggedIn.answerInvite(inviteId, "accept");
  }

  decline(inviteId: Id): Promise<void> {
    return this.loggedIn.answerInvite(inviteId, "decline");
  }

  leave(groupId: Id): Promise<void> {
    return this.loggedIn.leave(groupId);
  }

  deleteGroup(groupId: Id): Promise<void> {
    return this.loggedIn.deleteGroup(groupId);
  }

  invite(groupId: Id, username: string): Promise<void> {
    return this.loggedIn.membership.invite(groupId, username);
  }

  cancelInvite(groupId: Id, userId: Id): Promise<void> {
    return this.server.cancelInvite(groupId, userId);
  }

  administration(groupId: Id): Promise<api.Administration> {
    return this.loggedIn.administration(groupId);
  }

  removeMember(groupId: Id, userId: Id): Promise<void> {
    return this.loggedIn.membership.remove("remove", groupId, userId);
  }

  ban(groupId: Id, userId: Id): Promise<void> {
    return this.loggedIn.membership.remove("ban", groupId, userId);
  }

  unban(groupId: Id, userId: Id): Promise<void> {
    return this.server.unban(groupId, userId);
  }

  setRole(groupId: Id, userId: Id, role: api.Role): Promise<void> {
    return this.server.setRole(groupId, userId, role);
  }

  changeGroup(groupId: Id, change: { title?: string; name?: string; visibility?: api.Visibility }): Promise<void> {
    return this.loggedIn.changeGroup(groupId, change);
  }

  setExpiry(groupId: Id, seconds: number): Promise<void> {
    return this.loggedIn.setExpiry(groupId, seconds);
  }

  previewExpiry(groupId: Id, seconds: number): Promise<api.DryRun> {
    return this.loggedIn.previewExpiry(groupId, seconds);
  }

  // Keys

  comparisonCode(_userId: Id, fingerprint: string): Promise<api.Code> {
    return this.loggedIn.code(fingerprint);
  }

  verify(userId: Id, fingerprint: string): Promise<void> {
    return this.loggedIn.setTrust(userId, fingerprint, "verified");
  }

  acceptKey(userId: Id, fingerprint: string): Promise<void> {
    return this.loggedIn.setTrust(userId, fingerprint, "unknown");
  }

  resetKeys(): Promise<void> {
    return this.loggedIn.resetKeys();
  }
}

/** Executes a command of the page. */
export async function perform(engine: Engine, { command, args }: api.Request): Promise<unknown> {
  const work = engine[command] as (...each: unknown[]) => Promise<unknown>;
  return work.apply(engine, args);
}
