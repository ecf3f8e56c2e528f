/** Coming into groups and leaving them, with what the encryption has to say to it. */

import type { Id } from "./api";
import type { Encryption, Joining } from "./encryption/encryption";
import { EncryptionError } from "./encryption/errors";
import { Code, hasCode, RefusedError } from "./server/errors";
import type { Server } from "./server/server";

export class Membership {
  /** `changed`: is told of groups that are to be fetched, since no event tells the user of own changes. */
  constructor(
    private readonly server: Server,
    private readonly keys: Encryption,
    private readonly changed: (groupId: Id) => void,
  ) {}

  /** Creates a group, and begins it. */
  async create(name: string, title: string): Promise<Id> {
    const groupId = await this.server.createGroup(name, title);
    const { info, mlsGroupId } = await this.keys.begin(groupId);
    await this.server.commit(groupId, { info, mlsGroupId });
    this.changed(groupId);
    return groupId;
  }

  /** Invites a user: takes a key package, and deposits what it needs. */
  async invite(groupId: Id, username: string): Promise<void> {
    const user = await this.server.user(username);
    let keyPackage: Uint8Array;
    try {
      keyPackage = await this.server.keyPackageFor(groupId, user.user_id);
    } catch (error) {
      if (!(error instanceof RefusedError) || error.code !== Code.NOT_FOUND) throw error;
      const text = `${username} has no keys yet: they come with the first login of ${username}; invite again after that`;
      throw new RefusedError(error.status, error.code, text);
    }
    const change = await this.keys.add(groupId, user.user_id, keyPackage);
    await this.server.depositInvite(groupId, user.user_id, change.commit, change.welcome, change.info);
  }

  /**
   * Joins a public group, and tells its members by an external commit. Where the user cannot come in, the user is no member
   * after it. If another commit came first, the user is one, and comes in by itself.
   */
  async join(groupId: Id): Promise<void> {
    try {
      const info = await this.server.join(groupId);
      let joining: Joining;
      try {
        joining = await this.keys.join(groupId, info);
      } catch (error) {
        if (error instanceof EncryptionError) await this.leave(groupId).catch(() => undefined); // the server does it too, later
        throw error;
      }
      try {
        await this.server.externalJoin(groupId, joining.commit, joining.mlsGroupId, joining.info);
      } catch (error) {
        if (!hasCode(error, Code.CONFLICT)) throw error;
        await this.keys.leave(groupId);
      }
    } finally {
      this.keys.agenda.want(groupId); // an answer may be lost, and no event tells the user of what is the user's
      this.changed(groupId);
    }
  }

  /** Removes a member, or bans a user. */
  async remove(how: "remove" | "ban", groupId: Id, userId: Id): Promise<void> {
    const change = await this.keys.remove(groupId, userId).catch((error: unknown) => {
      if (error instanceof EncryptionError) return { commit: new Uint8Array(), info: new Uint8Array() };
      throw error;
    });
    try {
      await this.server.removeMember(how, groupId, userId, change.commit, change.info);
    } finally {
      this.changed(groupId);
    }
  }

  async leave(groupId: Id): Promise<void> {
    await this.server.leave(groupId);
    await this.keys.forget(groupId);
  }
}
