/** Joins groups by the server's group info, or creates the encryption of a group that has none. */

import type { Id } from "../api";
import { readInfo } from "../mls/wire";
import { Code, hasCode, RefusedError } from "../server/errors";
import type { Server } from "../server/server";
import type { ListedGroup } from "../server/wire";
import type { GroupAgenda } from "./agenda";
import { COMMIT_ARRIVAL_SECONDS, type Encryption, type ExternalCommit } from "./encryption";

/** After waiting this often for a newer group info, commits that contradict it are ignored. */
const MAX_STALE_INFO_ATTEMPTS = 3;
/** If several join at the same time, all but one retry after 0.2 to 0.4 seconds. */
const CONFLICT_RETRY_SECONDS = 0.2;

export const isAdmin = (group: ListedGroup, userId: Id): boolean =>
  group.members.some((each) => each.user_id === userId && each.role === "admin");

export class GroupJoiner {
  constructor(
    private readonly keys: Encryption,
    private readonly server: Server,
  ) {}

  /** Joins a group, or creates its encryption. Returns whether to fetch the group. */
  async join(group: ListedGroup, agenda: GroupAgenda): Promise<boolean> {
    const groupId = group.group_id;
    const bytes = await this.server.groupInfo(groupId);
    const info = readInfo(bytes);
    if (!group.mls_group_id && !info) {
      if (isAdmin(group, this.keys.userId)) await this.create(groupId);
      else this.keys.agenda.schedule(groupId, agenda.nextJoinDelay());
      return false;
    }
    if (!info || (group.mls_group_id && info.groupId !== group.mls_group_id)) {
      this.keys.agenda.schedule(groupId, agenda.nextJoinDelay());
      return false;
    }
    const record = this.keys.recordOf(groupId);
    if (record && this.keys.isOutdated(record, info)) {
      if (agenda.attempts < MAX_STALE_INFO_ATTEMPTS) {
        this.keys.agenda.schedule(groupId, agenda.nextJoinDelay());
        return true;
      }
      await this.keys.forgetCommits(groupId);
    }
    if (await this.keys.isReplaced(groupId, bytes)) return false;
    await this.sendJoin(groupId, await this.keys.join(groupId, bytes), agenda);
    return true;
  }

  /** Sends an external commit. It takes effect when it is fetched. */
  async sendJoin(groupId: Id, joining: ExternalCommit, agenda: GroupAgenda): Promise<void> {
    agenda.attempts += 1;
    this.keys.agenda.schedule(groupId, Math.max(COMMIT_ARRIVAL_SECONDS, agenda.nextJoinDelay()));
    try {
      await this.server.externalJoin(groupId, joining.commit, joining.mlsGroupId, joining.info);
    } catch (error) {
      if (error instanceof RefusedError && error.status < 500) await this.keys.dropState(groupId);
      if (!hasCode(error, Code.CONFLICT)) throw error;
      agenda.resetAttempts();
      this.keys.agenda.schedule(groupId, CONFLICT_RETRY_SECONDS * (1 + Math.random()));
    }
  }

  /** Creates the encryption of a group that has members but no keys, since its creator did not. */
  private async create(groupId: Id): Promise<void> {
    const { mlsGroupId } = await this.keys.create(groupId);
    await this.server.commit(groupId, { mlsGroupId }); // the first of two wins
    this.keys.agenda.schedule(groupId, 0);
  }

  /** Sends the id of the MLS group to the server, or drops the state if the server has another one. */
  async setMlsGroupId(group: ListedGroup): Promise<void> {
    const groupId = group.group_id;
    const ours = this.keys.groupOf(groupId);
    if (group.mls_group_id || !ours) await this.keys.dropState(groupId);
    else await this.server.commit(groupId, { info: await ours.groupInfo(), mlsGroupId: ours.groupId });
    this.keys.agenda.schedule(groupId, 0);
  }
}
