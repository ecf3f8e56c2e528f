/** Creates, joins and leaves groups, and changes their members, together with the encryption. */

import type { Id } from "./api";
import type { Encryption, ExternalCommit } from "./encryption/encryption";
import { EncryptionError } from "./encryption/errors";
import { Code, hasCode, RefusedError } from "./server/errors";
import type { Server } from "./server/server";

export class Membership {
  /** `refresh`: called for groups to fetch, since the server sends no events for the user's own changes. */
  constructor(
    private readonly server: Server,
    private readonly keys: Encryption,
    private readonly refresh: (groupId: Id) => void,
  ) {}

  /** Creates a group with its encryption. */
  async create(name: string, title: string): Promise<Id> {
    const groupId = await this.server.createGroup(name, title);
    const { info, mlsGroupId } = await this.keys.create(groupId);
    await this.server.commit(groupId, { info, mlsGroupId });
    this.refresh(groupId);
    return groupId;
  }

  /** Invites a user: takes a key package, and deposits a commit and a Welcome. */
  async invite(groupId: Id, username: string): Promise<void> {
    const user = await this.server.user(username);
    let keyPackage: Uint8Array;
    try {
      keyPackage = await this.server.keyPackageFor(groupId, user.user_id);
    } catch (error) {
      if (!(error instanceof RefusedError) || error.code !== Code.NOT_FOUND) throw error;
      const text = `${username} has no keys yet: invite them again after their first login`;
      throw new RefusedError(error.status, error.code, text);
    }
    const change = await this.keys.add(groupId, user.user_id, keyPackage);
    await this.server.depositInvite(groupId, user.user_id, change.commit, change.welcome, change.info);
  }

  /**
   * Joins a public group by an external commit. If its group info cannot be used, the user leaves again. If another commit
   * came first, the user is a member, and GroupMaintenance retries.
   */
  async join(groupId: Id): Promise<void> {
    try {
      const info = await this.server.join(groupId);
      let joining: ExternalCommit;
      try {
        joining = await this.keys.join(groupId, info);
      } catch (error) {
        if (error instanceof EncryptionError) await this.leave(groupId).catch(() => undefined); // the server does so later, too
        throw error;
      }
      try {
        await this.server.externalJoin(groupId, joining.commit, joining.mlsGroupId, joining.info);
      } catch (error) {
        if (!hasCode(error, Code.CONFLICT)) throw error;
        await this.keys.dropState(groupId);
      }
    } finally {
      this.keys.agenda.schedule(groupId); // a response may be lost, and there are no events for own changes
      this.refresh(groupId);
    }
  }

  /** Removes or bans a member. */
  async remove(how: "remove" | "ban", groupId: Id, userId: Id): Promise<void> {
    const change = await this.keys.remove(groupId, userId).catch((error: unknown) => {
      if (error instanceof EncryptionError) return { commit: new Uint8Array(), info: new Uint8Array() };
      throw error;
    });
    try {
      await this.server.removeMember(how, groupId, userId, change.commit, change.info);
    } finally {
      this.refresh(groupId);
    }
  }

  async leave(groupId: Id): Promise<void> {
    await this.server.leave(groupId);
    await this.keys.forget(groupId);
  }
}
