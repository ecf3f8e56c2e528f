/** Coming in from outside: asks in by what the server has for those who come in, or begins a group that never began. */

import type { Id } from "../api";
import { readInfo } from "../mls/wire";
import { Code, hasCode, RefusedError } from "../server/errors";
import type { Server } from "../server/server";
import type { ListedGroup } from "../server/wire";
import type { GroupAgenda } from "./agenda";
import { AWAITED_SECONDS, type Encryption, type Joining } from "./encryption";

/** So often a joiner waits for a newer group info; then a commit that says otherwise may be rubbish. */
const TRIES_BY_STALE_INFO = 3;
/** Of several who come in at the same moment all but one are late: each asks again after 0.2 to 0.4 seconds. */
const LATE_SECONDS = 0.2;

export const isAdmin = (group: ListedGroup, userId: Id): boolean =>
  group.members.some((each) => each.user_id === userId && each.role === "admin");

export class ComingIn {
  constructor(
    private readonly keys: Encryption,
    private readonly server: Server,
  ) {}

  /** Asks in by an external commit, or begins the group if it never began. Tells whether it is to be fetched. */
  async comeIn(group: ListedGroup, agenda: GroupAgenda): Promise<boolean> {
    const groupId = group.group_id;
    const bytes = await this.server.groupInfo(groupId);
    const info = readInfo(bytes);
    if (!group.mls_group_id && !info) {
      if (isAdmin(group, this.keys.userId)) await this.begin(groupId);
      else this.keys.agenda.want(groupId, agenda.wait());
      return false;
    }
    if (!info || (group.mls_group_id && info.groupId !== group.mls_group_id)) {
      this.keys.agenda.want(groupId, agenda.wait());
      return false;
    }
    const held = this.keys.heldOf(groupId);
    if (held && this.keys.isOutdated(held, info)) {
      if (agenda.attempts < TRIES_BY_STALE_INFO) {
        this.keys.agenda.want(groupId, agenda.wait());
        return true;
      }
      await this.keys.forgetCommits(groupId);
    }
    if (await this.keys.givesWay(groupId, bytes)) return false;
    await this.ask(groupId, await this.keys.join(groupId, bytes), agenda);
    return true;
  }

  /** Sends an external commit. It counts once it comes back. */
  async ask(groupId: Id, joining: Joining, agenda: GroupAgenda): Promise<void> {
    agenda.attempts += 1;
    this.keys.agenda.want(groupId, Math.max(AWAITED_SECONDS, agenda.wait()));
    try {
      await this.server.externalJoin(groupId, joining.commit, joining.mlsGroupId, joining.info);
    } catch (error) {
      if (error instanceof RefusedError && error.status < 500) await this.keys.leave(groupId);
      if (!hasCode(error, Code.CONFLICT)) throw error;
      agenda.isLate();
      this.keys.agenda.want(groupId, LATE_SECONDS * (1 + Math.random()));
    }
  }

  /** Begins a group that has members, but no keys: its creator's client died, or did not encrypt. */
  private async begin(groupId: Id): Promise<void> {
    const { mlsGroupId } = await this.keys.begin(groupId);
    await this.server.commit(groupId, { mlsGroupId }); // of two who begin the first is the one
    this.keys.agenda.want(groupId, 0);
  }

  /** The server does not know the group by its id: says it, or gives way to another one that began first. */
  async name(group: ListedGroup): Promise<void> {
    const groupId = group.group_id;
    const ours = this.keys.groupOf(groupId);
    if (group.mls_group_id || !ours) await this.keys.leave(groupId);
    else await this.server.commit(groupId, { info: await ours.groupInfo(), mlsGroupId: ours.groupId });
    this.keys.agenda.want(groupId, 0);
  }
}
