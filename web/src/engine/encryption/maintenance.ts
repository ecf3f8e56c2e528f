/**
 * The maintenance that clients do without their users: joining, removing former members from the tree, renewing keys.
 *
 * It is stateless: each check compares the actual with the desired state, so it recovers from lost joinCommits.
 */

import type { Id } from "../api";
import type { MlsGroup } from "../mls/group";
import { isSessionOver } from "../server/errors";
import type { Server } from "../server/server";
import type { ListedGroup } from "../server/wire";
import { CHECK_INTERVAL_SECONDS, type GroupAgenda } from "./agenda";
import { Branches } from "./branches";
import { COMMIT_ARRIVAL_SECONDS, type Encryption } from "./encryption";
import { GroupJoiner, isAdmin } from "./joining";

/** The own leaf is renewed after six days, or by an earlier commit. */
const RENEWAL_SECONDS = 6 * 86_400;
/** If several members could make a commit, each waits two seconds longer than the one before. */
const TURN_SECONDS = 2;
const MAX_TURN_WAIT = 20;
/** A user who has just left keeps the keys for a moment: this is reported only after five seconds. */
const STRANGER_REPORT_SECONDS = 5;

const STRANGER = "This user is not a member but can read messages. An admin's device will remove their access.";
const MENDED = "Only members can read this group again.";

export class GroupMaintenance {
  private readonly joiner: GroupJoiner;
  private readonly branches: Branches;

  constructor(
    private readonly keys: Encryption,
    private readonly server: Server,
  ) {
    this.joiner = new GroupJoiner(keys, server);
    this.branches = new Branches(keys, this.joiner, server);
  }

  get isDue(): boolean {
    return this.keys.agenda.due().length > 0;
  }

  /** Checks the groups that are due; returns those to fetch. Throws only if the session has ended. */
  async processDue(groups: readonly ListedGroup[]): Promise<Set<Id>> {
    const due = new Set(this.keys.agenda.due());
    const toFetch = new Set<Id>();
    for (const id of due) if (!groups.some((each) => each.group_id === id)) this.skip(id);
    for (const group of groups) {
      if (!due.has(group.group_id)) continue;
      const agenda = this.keys.agenda.of(group.group_id);
      agenda.at = null;
      this.keys.agenda.schedule(group.group_id, CHECK_INTERVAL_SECONDS);
      try {
        if (await this.check(group, agenda)) toFetch.add(group.group_id);
      } catch (error) {
        if (isSessionOver(error)) throw error;
        this.keys.agenda.schedule(group.group_id, agenda.nextJoinDelay());
        toFetch.add(group.group_id); // the commit may be stored although the response was lost
      }
    }
    return toFetch;
  }

  /** The group is not listed: the user has left it, or joined it after the list was read. */
  private skip(groupId: Id): void {
    if (!this.keys.recordOf(groupId)) return this.keys.agenda.forget(groupId);
    this.keys.agenda.of(groupId).at = null;
    this.keys.agenda.schedule(groupId, COMMIT_ARRIVAL_SECONDS);
  }

  /** Checks a group. Returns whether to fetch it. */
  private async check(group: ListedGroup, agenda: GroupAgenda): Promise<boolean> {
    const groupId = group.group_id;
    this.keys.updateMembers([group]);
    const record = this.keys.recordOf(groupId);
    if (record?.stage === "replaced") return false;
    if (record?.stage === "awaiting") {
      const rest = agenda.joinSentAt + COMMIT_ARRIVAL_SECONDS - agenda.clock();
      if (rest > 0) {
        this.keys.agenda.schedule(groupId, rest);
        return true;
      }
      await this.keys.dropState(groupId); // fetched since, without the commit
    }
    const ours = this.keys.groupOf(groupId);
    if (!ours) return this.joiner.join(group, agenda);
    if (!agenda.isCaughtUp) {
      this.keys.agenda.schedule(groupId);
      return true;
    }
    if (group.mls_group_id !== ours.groupId) {
      await this.joiner.setMlsGroupId(group);
      return false;
    }
    return (await this.branches.check(groupId, agenda)) || this.commitIfNeeded(group, agenda);
  }

  /** Commits the removal of strangers, waiting proposals, and new own keys, if necessary. */
  private async commitIfNeeded(group: ListedGroup, agenda: GroupAgenda): Promise<boolean> {
    const groupId = group.group_id;
    const record = this.keys.recordOf(groupId);
    const ours = this.keys.groupOf(groupId);
    if (!record || !ours) return false;
    const strangers = ours.members().filter((each) => !agenda.listed?.has(each.userId));
    this.reportStrangers(groupId, agenda, strangers.map((each) => each.userId));
    const removable = isAdmin(group, this.keys.userId) ? strangers.map((each) => each.index) : [];
    const isNeeded = removable.length > 0 || ours.hasProposals;
    if (!isNeeded) agenda.commitNeededSince = null;
    else if (!this.isOwnTurn(group, ours, agenda)) return false;
    const isOld = record.isDoubtful || this.keys.now() - record.renewedAt >= RENEWAL_SECONDS;
    if (!isNeeded && !isOld) return false;
    const change = await this.keys.commit(groupId, removable);
    this.keys.agenda.schedule(groupId, COMMIT_ARRIVAL_SECONDS);
    await this.server.commit(groupId, { commit: change.commit, info: change.info });
    return true;
  }

  /** Whether it is this client's turn to make a commit that several could make. */
  private isOwnTurn(group: ListedGroup, ours: MlsGroup, agenda: GroupAgenda): boolean {
    const now = agenda.clock();
    agenda.commitNeededSince ??= now;
    const inTree = new Set(ours.members().map((each) => each.userId));
    const order = group.members
      .filter((each) => inTree.has(each.user_id))
      .sort((one, other) => Number(one.role !== "admin") - Number(other.role !== "admin") || (one.user_id < other.user_id ? -1 : 1));
    const rank = order.findIndex((each) => each.user_id === this.keys.userId);
    const wait = agenda.commitNeededSince + Math.min(Math.max(rank, 0) * TURN_SECONDS, MAX_TURN_WAIT) - now;
    if (wait > 0) this.keys.agenda.schedule(group.group_id, wait);
    return wait <= 0;
  }

  /** Reports users who have keys but are not members, and when this has ended. */
  private reportStrangers(groupId: Id, agenda: GroupAgenda, strangers: readonly Id[]): void {
    const now = agenda.clock();
    const report = (what: "stranger" | "mended", sentence: string, userId?: Id): void =>
      this.keys.addNews({ kind: "notice", groupId, what, sentence, userId }, { kind: "changed", groupId });
    if (strangers.length === 0) {
      if (agenda.isStrangerReported) report("mended", MENDED);
      agenda.strangerSince = null;
      agenda.isStrangerReported = false;
      return;
    }
    agenda.strangerSince ??= now;
    if (agenda.isStrangerReported) return;
    if (now - agenda.strangerSince < STRANGER_REPORT_SECONDS) return this.keys.agenda.schedule(groupId, STRANGER_REPORT_SECONDS);
    agenda.isStrangerReported = true;
    for (const each of strangers) report("stranger", STRANGER, each);
  }
}
