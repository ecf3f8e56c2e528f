/**
 * What members' clients do by themselves, so that a group goes on: coming in, mending the tree, renewing keys.
 *
 * Nothing here remembers what was begun: each look compares what is with what should be. So, whatever was lost on the way,
 * the next look goes on from there.
 */

import type { Id } from "../api";
import type { MlsGroup } from "../mls/group";
import { isSessionOver } from "../server/errors";
import type { Server } from "../server/server";
import type { ListedGroup } from "../server/wire";
import { ROUND_SECONDS, type GroupAgenda } from "./agenda";
import { Branches } from "./branches";
import { ComingIn, isAdmin } from "./coming-in";
import { AWAITED_SECONDS, type Encryption } from "./encryption";

/** The own leaf is renewed after six days, or with any commit of the user's before that. */
const RENEWED_SECONDS = 6 * 86_400;
/** What several members could do the first does at once, the next after two seconds if it is still to be done. */
const TURN_SECONDS = 2;
const LONGEST_TURN = 20;
/** Who has just left has keys for a moment: that is told only if it stays so for five seconds. */
const STRANGER_TOLD_AFTER = 5;

const STRANGER = "This person can read what is written here, and is no member: an admin's client has to change that.";
const MENDED = "Only members have the keys of this group again.";

export class Keeper {
  private readonly entry: ComingIn;
  private readonly branches: Branches;

  constructor(
    private readonly keys: Encryption,
    private readonly server: Server,
  ) {
    this.entry = new ComingIn(keys, server);
    this.branches = new Branches(keys, this.entry, server);
  }

  get isDue(): boolean {
    return this.keys.agenda.due().length > 0;
  }

  /** Looks at the groups that are due; returns those that are to be fetched then. Throws only if the session is over. */
  async settle(groups: readonly ListedGroup[]): Promise<Set<Id>> {
    const due = new Set(this.keys.agenda.due());
    const toFetch = new Set<Id>();
    for (const gone of due) if (!groups.some((each) => each.group_id === gone)) this.passOver(gone);
    for (const group of groups) {
      if (!due.has(group.group_id)) continue;
      const agenda = this.keys.agenda.of(group.group_id);
      agenda.at = null;
      this.keys.agenda.want(group.group_id, ROUND_SECONDS);
      try {
        if (await this.look(group, agenda)) toFetch.add(group.group_id);
      } catch (error) {
        if (isSessionOver(error)) throw error;
        this.keys.agenda.want(group.group_id, agenda.wait());
        toFetch.add(group.group_id); // the answer may be lost, and the commit there
      }
    }
    return toFetch;
  }

  /** The user is not in a group; or was not when the server was asked, and has come in since. */
  private passOver(groupId: Id): void {
    if (!this.keys.heldOf(groupId)) return this.keys.agenda.forget(groupId);
    this.keys.agenda.of(groupId).at = null;
    this.keys.agenda.want(groupId, AWAITED_SECONDS);
  }

  /** Looks at a group. Tells whether it is to be fetched. */
  private async look(group: ListedGroup, agenda: GroupAgenda): Promise<boolean> {
    const groupId = group.group_id;
    this.keys.noteMembers([group]);
    const held = this.keys.heldOf(groupId);
    if (held?.stage === "replaced") return false;
    if (held?.stage === "awaiting") {
      const rest = agenda.askedAt + AWAITED_SECONDS - agenda.clock();
      if (rest > 0) {
        this.keys.agenda.want(groupId, rest);
        return true;
      }
      await this.keys.leave(groupId); // it was fetched since, and the commit was not there
    }
    const ours = this.keys.groupOf(groupId);
    if (!ours) return this.entry.comeIn(group, agenda);
    if (!agenda.isCaughtUp) {
      this.keys.agenda.want(groupId);
      return true;
    }
    if (group.mls_group_id !== ours.groupId) {
      await this.entry.name(group);
      return false;
    }
    return (await this.branches.check(groupId, agenda)) || this.mend(group, agenda);
  }

  /** Commits what has to be: without strangers, with proposals that wait, with new own keys. */
  private async mend(group: ListedGroup, agenda: GroupAgenda): Promise<boolean> {
    const groupId = group.group_id;
    const held = this.keys.heldOf(groupId);
    const ours = this.keys.groupOf(groupId);
    if (!held || !ours) return false;
    const strangers = ours.members().filter((each) => !agenda.listed?.has(each.userId));
    this.tellStrangers(groupId, agenda, strangers.map((each) => each.userId));
    const removable = isAdmin(group, this.keys.userId) ? strangers.map((each) => each.index) : [];
    const isNeeded = removable.length > 0 || ours.hasProposals;
    if (!isNeeded) agenda.neededSince = null;
    else if (!this.hasTurn(group, ours, agenda)) return false;
    const isOld = held.isDoubtful || this.keys.now() - held.renewedAt >= RENEWED_SECONDS;
    if (!isNeeded && !isOld) return false;
    const change = await this.keys.commit(groupId, removable);
    this.keys.agenda.want(groupId, AWAITED_SECONDS);
    await this.server.commit(groupId, { commit: change.commit, info: change.info });
    return true;
  }

  /** Whether it is this client's turn to do what several could. */
  private hasTurn(group: ListedGroup, ours: MlsGroup, agenda: GroupAgenda): boolean {
    const now = agenda.clock();
    agenda.neededSince ??= now;
    const inTree = new Set(ours.members().map((each) => each.userId));
    const order = group.members
      .filter((each) => inTree.has(each.user_id))
      .sort((one, other) => Number(one.role !== "admin") - Number(other.role !== "admin") || (one.user_id < other.user_id ? -1 : 1));
    const rank = order.findIndex((each) => each.user_id === this.keys.userId);
    const wait = agenda.neededSince + Math.min(Math.max(rank, 0) * TURN_SECONDS, LONGEST_TURN) - now;
    if (wait > 0) this.keys.agenda.want(group.group_id, wait);
    return wait <= 0;
  }

  /** Tells who has keys without being a member, if it stays so; and that it is over. */
  private tellStrangers(groupId: Id, agenda: GroupAgenda, strangers: readonly Id[]): void {
    const now = agenda.clock();
    const tell = (what: "stranger" | "mended", sentence: string, userId?: Id): void =>
      this.keys.tell({ kind: "notice", groupId, what, sentence, userId }, { kind: "changed", groupId });
    if (strangers.length === 0) {
      if (agenda.isStrangerTold) tell("mended", MENDED);
      agenda.strangerSince = null;
      agenda.isStrangerTold = false;
      return;
    }
    agenda.strangerSince ??= now;
    if (agenda.isStrangerTold) return;
    if (now - agenda.strangerSince < STRANGER_TOLD_AFTER) return this.keys.agenda.want(groupId, STRANGER_TOLD_AFTER);
    agenda.isStrangerTold = true;
    for (const each of strangers) tell("stranger", STRANGER, each);
  }
}
