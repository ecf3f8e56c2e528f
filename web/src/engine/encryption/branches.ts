/**
 * Resolves branches: when the keys of members diverge, some clients rejoin, so that all end in one branch.
 *
 * The group info on the server shows that there is another branch: a member joined by the group info of a losing commit, or
 * missed a commit that was deleted. No member can prove to a later one which branch is right, so the order in which
 * members joined decides. A member who has read no message of an earlier member in its branch is unconfirmed, and
 * rejoins; a confirmed one stays, unless an earlier member insists. Only one branch has its group info on the server, so
 * two never rejoin each other's branch.
 */

import type { Id } from "../api";
import { equal, utf8 } from "../bytes";
import type { MlsGroup } from "../mls/group";
import { epochOfInfo, readInfo, type GroupInfoHeader } from "../mls/wire";
import type { Server } from "../server/server";
import { CHECK_INTERVAL_SECONDS, type GroupAgenda } from "./agenda";
import type { Encryption, ExternalCommit } from "./encryption";
import { EncryptionError } from "./errors";
import type { GroupRecord } from "./group-record";
import type { GroupJoiner } from "./joining";

/** A new member waits this long before it rejoins a branch that is ahead. */
const NEW_MEMBER_DELAY = 0.5;
/** An unconfirmed member waits this long before it rejoins the branch of an earlier or later member. */
const SENIOR_DELAY = 3;
const JUNIOR_DELAY = 12;
/** The delay doubles with each attempt, up to eight times. */
const MAX_DOUBLINGS = 3;
/** An earlier member whose group info was replaced this often prevails. */
const SENIOR_REPLACEMENTS = 6;
/** A group info that was replaced is compared again after this time: others may have replaced it too. */
const RECHECK_SECONDS = 5;
/** This many unreadable messages in an epoch show that this client is in the wrong branch. */
const MAX_UNREADABLE = 8;
/** Takes the place of the group info meanwhile. No client can join by it. */
const PLACEHOLDER_INFO = utf8("none");

const REJOINED = "The keys of this device differed from those of the group. It rejoins.";
const FALSE_INFO = "The server's information for joining this group was false. It was replaced.";

export class Branches {
  constructor(
    private readonly keys: Encryption,
    private readonly joiner: GroupJoiner,
    private readonly server: Server,
  ) {}

  /** Compares the server's group info if that is due. Returns whether the check of the group ends here. */
  async check(groupId: Id, agenda: GroupAgenda): Promise<boolean> {
    if (agenda.infoAt !== null && agenda.infoAt <= agenda.clock()) {
      agenda.infoAt = null;
      try {
        if (await this.compare(groupId, agenda)) return true;
      } catch (error) {
        agenda.checkInfoSoon(); // not compared: retry before the hourly check
        throw error;
      }
    }
    if (agenda.infoAt === null) {
      const record = this.keys.recordOf(groupId);
      const isStable = agenda.isSettled && record !== undefined && !record.isUnconfirmed;
      agenda.checkInfo(isStable ? CHECK_INTERVAL_SECONDS : agenda.nextCheckDelay());
    }
    this.keys.agenda.schedule(groupId, Math.max(0, (agenda.infoAt ?? 0) - agenda.clock()));
    return false;
  }

  /** Compares the group info, and rejoins or replaces it if it differs. Returns whether the check ends here. */
  private async compare(groupId: Id, agenda: GroupAgenda): Promise<boolean> {
    const bytes = await this.server.groupInfo(groupId);
    const info = readInfo(bytes);
    const record = this.keys.recordOf(groupId); // read after the response: messages may have been processed meanwhile
    const ours = this.keys.groupOf(groupId);
    if (!record || !ours) return true;
    agenda.isNew &&= info !== null && info.epoch >= ours.epoch;
    if (info?.groupId === ours.groupId && info.epoch === ours.epoch && info.tag === ours.tag) {
      agenda.hasLaterMessages = agenda.isNew = false;
      agenda.otherEpoch = null;
      // otherwise it is only this client's own upload
      if (agenda.infoUploadedEpoch !== ours.epoch) agenda.unreadableCount = agenda.unreadableCommits = 0;
      return false;
    }
    if (info?.groupId === ours.groupId && !record.hasPassed(info.tag)) {
      const wait = this.rejoinDelay(record, ours, agenda, info);
      if (wait !== null && (await this.rejoin(groupId, ours, agenda, bytes, info, wait))) return true;
      if (info.epoch > ours.epoch && agenda.unreadableCount === 0)
        this.keys.addNews({ kind: "notice", groupId, what: "refused", sentence: FALSE_INFO });
      if (info.signer && info.signer.userId !== this.keys.userId) agenda.recordContest();
    }
    agenda.hasLaterMessages = agenda.isNew = false;
    agenda.otherEpoch = null;
    // Other clients may be able to read it, unless its epoch is impossible: then a member has forged it.
    if (!info && (epochOfInfo(bytes) ?? Infinity) <= ours.epoch + 1) return false;
    agenda.infoUploadedEpoch = ours.epoch; // the response may be lost
    // The server does not replace a later epoch by an earlier one, so a placeholder comes between.
    if (bytes.length > 0 && !equal(bytes, PLACEHOLDER_INFO) && (info === null || info.epoch > ours.epoch))
      await this.server.commit(groupId, { info: PLACEHOLDER_INFO });
    await this.server.commit(groupId, { info: await ours.groupInfo() });
    agenda.checkInfo(RECHECK_SECONDS);
    return false;
  }

  /** Returns how long to wait before rejoining the other branch; null: this client does not rejoin. */
  private rejoinDelay(record: GroupRecord, ours: MlsGroup, agenda: GroupAgenda, info: GroupInfoHeader): number | null {
    const { signer } = info;
    if (signer && agenda.unauthorized.has(signer.userId)) return null;
    const isCredible = signer !== null && this.isCredible(ours, agenda, signer);
    const isSenior = isCredible && record.isSenior(signer.userId);
    if (record.isUnconfirmed && isCredible) {
      if (agenda.isNew) return info.epoch > ours.epoch ? NEW_MEMBER_DELAY : 0;
      return (isSenior ? SENIOR_DELAY : JUNIOR_DELAY) * 2 ** Math.min(agenda.attempts, MAX_DOUBLINGS);
    }
    const isNew = record.firstEpoch > 0 && record.firstEpoch === ours.epoch;
    const cannotRead = agenda.readableCount === 0 && agenda.unreadableCount >= (isNew || !agenda.hasReadAll ? 1 : MAX_UNREADABLE);
    // The group may be there: the commits that lead there are fetched first.
    if (info.epoch > ours.epoch && !(agenda.hasReadPast(ours.epoch) && agenda.isComplete)) return 0;
    // Other members could read what this client cannot.
    if (info.epoch >= ours.epoch && cannotRead) return 0;
    return isSenior && agenda.contested >= SENIOR_REPLACEMENTS ? 0 : null;
  }

  /** Whether the signer of a group info is another member by the server's list, with the known key. */
  private isCredible(ours: MlsGroup, agenda: GroupAgenda, signer: NonNullable<GroupInfoHeader["signer"]>): boolean {
    if (signer.userId === this.keys.userId) return false;
    const member = ours.find(signer.userId);
    return (!member || equal(member.signatureKey, signer.signatureKey)) && (agenda.listed?.has(signer.userId) ?? false);
  }

  /** Fetches commits that may lead to the other branch, then rejoins it. Returns false if its group info is unusable. */
  private async rejoin(
    groupId: Id,
    ours: MlsGroup,
    agenda: GroupAgenda,
    bytes: Uint8Array,
    info: GroupInfoHeader,
    wait: number,
  ): Promise<boolean> {
    const isVoid = agenda.isNew && info.epoch === ours.epoch; // another commit won: no commit continues this state
    const hasWaited = !agenda.recordOtherEpoch(ours.epoch) && agenda.clock() - agenda.otherEpochSeenAt >= wait;
    if (!isVoid && !(hasWaited && agenda.hasReadPast(ours.epoch))) {
      agenda.checkInfoSoon();
      this.keys.agenda.schedule(groupId);
      return true;
    }
    if (await this.keys.isReplaced(groupId, bytes)) return true;
    let joining: ExternalCommit;
    try {
      joining = await this.keys.join(groupId, bytes, true);
    } catch (error) {
      if (error instanceof EncryptionError) return false;
      throw error;
    }
    if (!agenda.isNew) this.keys.addNews({ kind: "notice", groupId, what: "lost", sentence: REJOINED });
    this.keys.addNews({ kind: "changed", groupId });
    await this.joiner.sendJoin(groupId, joining, agenda);
    return true;
  }
}
