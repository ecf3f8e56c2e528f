/**
 * Branches: where members' keys have come apart, whose client comes in again, so that all end in one.
 *
 * The group info at the server, by which joiners come in, shows that there is another branch: a joiner used one of a commit
 * that lost, or has missed a commit that was erased since. No member can prove to a later one which branch is right. So it
 * is decided by what all see alike: the order in which members came in. A member who has read no earlier member's message
 * in its branch is unsure, and gives way; one who has read one stays, unless an earlier member insists. Only one branch has
 * its group info at the server, so two never give way to each other.
 */

import type { Id } from "../api";
import { equal, utf8 } from "../bytes";
import type { MlsGroup } from "../mls/group";
import { epochOfInfo, readInfo, type Info } from "../mls/wire";
import type { Server } from "../server/server";
import { ROUND_SECONDS, type GroupAgenda } from "./agenda";
import type { ComingIn } from "./coming-in";
import type { Encryption, Joining } from "./encryption";
import { EncryptionError } from "./errors";
import type { Held } from "./held";

/** Who has just come in gives way so soon to a branch that is ahead, if what leads there does not come. */
const NEW_SECONDS = 0.5;
/** Who is unsure gives way after so long to somebody who was there before, or who came in later. */
const SENIOR_SECONDS = 3;
const JUNIOR_SECONDS = 12;
/** After twice as long each time that it has come in, up to eight times. */
const MOST_DOUBLINGS = 3;
/** What was replaced so often, and comes back, is insisted on by somebody who was there before. */
const SENIOR_RETURNS = 6;
/** What was put right at the server is looked at again after five seconds: others may have done so the other way. */
const CHECKED_AGAIN = 5;
/** Who has read all, but cannot read what the others say: after eight messages in an epoch it is this client's fault. */
const MANY = 8;
/** What is no group info: no client comes in by it. */
const NO_INFO = utf8("none");

const LOST = "This device had lost its way among the keys of this group, and comes in again.";
const FALSE_INFO =
  "What the server had for those who come in was false: it told of changes that nobody has made. It was replaced.";

export class Branches {
  constructor(
    private readonly keys: Encryption,
    private readonly entry: ComingIn,
    private readonly server: Server,
  ) {}

  /** Compares the group info of the server when it is time to. Tells whether to stop here. */
  async check(groupId: Id, agenda: GroupAgenda): Promise<boolean> {
    if (agenda.infoAt !== null && agenda.infoAt <= agenda.clock()) {
      agenda.infoAt = null;
      try {
        if (await this.compare(groupId, agenda)) return true;
      } catch (error) {
        agenda.doubtInfo(); // nothing was compared: look again soon, not with the next round
        throw error;
      }
    }
    if (agenda.infoAt === null) {
      const held = this.keys.heldOf(groupId);
      const isCalm = agenda.isSettled && held !== undefined && !held.isUnsure;
      agenda.checkInfo(isCalm ? ROUND_SECONDS : agenda.nextLook());
    }
    this.keys.agenda.want(groupId, Math.max(0, (agenda.infoAt ?? 0) - agenda.clock()));
    return false;
  }

  /** Compares, and mends what is wrong. Tells whether to stop here. */
  private async compare(groupId: Id, agenda: GroupAgenda): Promise<boolean> {
    const bytes = await this.server.groupInfo(groupId);
    const info = readInfo(bytes);
    const held = this.keys.heldOf(groupId); // only now: messages may have been read while the answer was on its way
    const ours = this.keys.groupOf(groupId);
    if (!held || !ours) return true;
    agenda.isNew &&= info !== null && info.epoch >= ours.epoch;
    if (info?.groupId === ours.groupId && info.epoch === ours.epoch && info.tag === ours.tag) {
      agenda.ahead = agenda.isNew = false;
      agenda.claimed = null;
      // or it says only what this client has said
      if (agenda.uploadedAtEpoch !== ours.epoch) agenda.bad = agenda.badCommits = 0;
      return false;
    }
    if (info?.groupId === ours.groupId && !held.wentThrough(info.tag)) {
      const wait = this.patience(held, ours, agenda, info);
      if (wait !== null && (await this.giveWay(groupId, ours, agenda, bytes, info, wait))) return true;
      if (info.epoch > ours.epoch && agenda.bad === 0)
        this.keys.tell({ kind: "notice", groupId, what: "refused", sentence: FALSE_INFO });
      if (info.signer && info.signer.userId !== this.keys.userId) agenda.contest();
    }
    agenda.ahead = agenda.isNew = false;
    agenda.claimed = null;
    // Another client may read what this one cannot, unless it tells of an epoch that cannot be: then a member has made it up.
    if (!info && (epochOfInfo(bytes) ?? Infinity) <= ours.epoch + 1) return false;
    agenda.uploadedAtEpoch = ours.epoch; // also where the answer is lost
    // The server replaces what says a later epoch only by what says none. Joiners wait meanwhile.
    if (bytes.length > 0 && !equal(bytes, NO_INFO) && (info === null || info.epoch > ours.epoch))
      await this.server.commit(groupId, { info: NO_INFO });
    await this.server.commit(groupId, { info: await ours.groupInfo() });
    agenda.checkInfo(CHECKED_AGAIN);
    return false;
  }

  /** How long another branch has to stay before this client gives way to it; null: it does not. */
  private patience(held: Held, ours: MlsGroup, agenda: GroupAgenda, info: Info): number | null {
    const { signer } = info;
    if (signer && agenda.withoutRight.has(signer.userId)) return null;
    const isCredible = signer !== null && this.isCredible(ours, agenda, signer);
    const isSenior = isCredible && held.isSenior(signer.userId);
    if (held.isUnsure && isCredible) {
      if (agenda.isNew) return info.epoch > ours.epoch ? NEW_SECONDS : 0;
      return (isSenior ? SENIOR_SECONDS : JUNIOR_SECONDS) * 2 ** Math.min(agenda.attempts, MOST_DOUBLINGS);
    }
    const isNew = held.firstEpoch > 0 && held.firstEpoch === ours.epoch;
    const cannotRead = agenda.good === 0 && agenda.bad >= (isNew || !agenda.hasReadAll ? 1 : MANY);
    // The others may be there: what leads there is fetched first.
    if (info.epoch > ours.epoch && !(agenda.hasFollowed(ours.epoch) && agenda.knowsAll)) return 0;
    // Nobody else followed: others may have other rules than those here.
    if (info.epoch >= ours.epoch && cannotRead) return 0;
    return isSenior && agenda.contested >= SENIOR_RETURNS ? 0 : null;
  }

  /** Whether who speaks for another branch is another member by the server's list, with the known key. */
  private isCredible(ours: MlsGroup, agenda: GroupAgenda, signer: NonNullable<Info["signer"]>): boolean {
    if (signer.userId === this.keys.userId) return false;
    const member = ours.find(signer.userId);
    return (!member || equal(member.signatureKey, signer.signatureKey)) && (agenda.listed?.has(signer.userId) ?? false);
  }

  /** Fetches what may lead to another branch; if it does not come, comes in there. False: nobody can by it. */
  private async giveWay(
    groupId: Id,
    ours: MlsGroup,
    agenda: GroupAgenda,
    bytes: Uint8Array,
    info: Info,
    wait: number,
  ): Promise<boolean> {
    const isVoid = agenda.isNew && info.epoch === ours.epoch; // another commit came first: nothing leads on from here
    const isOver = !agenda.claims(ours.epoch) && agenda.clock() - agenda.claimedAt >= wait;
    if (!isVoid && !(isOver && agenda.hasFollowed(ours.epoch))) {
      agenda.doubtInfo();
      this.keys.agenda.want(groupId);
      return true;
    }
    if (await this.keys.givesWay(groupId, bytes)) return true;
    let joining: Joining;
    try {
      joining = await this.keys.join(groupId, bytes, true);
    } catch (error) {
      if (error instanceof EncryptionError) return false;
      throw error;
    }
    if (!agenda.isNew) this.keys.tell({ kind: "notice", groupId, what: "lost", sentence: LOST });
    this.keys.tell({ kind: "changed", groupId });
    await this.entry.ask(groupId, joining, agenda);
    return true;
  }
}
