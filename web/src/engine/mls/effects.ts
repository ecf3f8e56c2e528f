/** Determines what a commit has changed, from its proposals and the trees before and after it. */

import type { ClientState } from "ts-mls/clientState.js";
import type { RatchetTree } from "ts-mls/ratchetTree.js";
import type { ProposalWithSender } from "ts-mls/unappliedProposals.js";
import { equal } from "../bytes";
import { leavesOf } from "./checks";
import { invalid } from "./errors";
import { memberOf, type CommitEffect, type Member } from "./group";

/** `tree`: after the commit. `committer`: its leaf index in `tree`. */
export function effectOf(
  before: ClientState,
  tree: RatchetTree,
  proposals: readonly ProposalWithSender[],
  committer: number,
): CommitEffect {
  const former = members(before.ratchetTree);
  const after = members(tree);
  const added: Member[] = [];
  const removed: Member[] = [];
  const updated: Member[] = [];
  const proposed: Member[] = [];
  let removedSelf = false;
  for (const { proposal, senderLeafIndex } of proposals) {
    let member: Member | undefined;
    if ("remove" in proposal) {
      member = former.get(proposal.remove.removed);
      if (member) removed.push(member);
      removedSelf ||= proposal.remove.removed === before.privatePath.leafIndex;
    } else if ("add" in proposal) {
      const key = proposal.add.keyPackage.leafNode.signaturePublicKey;
      member = [...after.values()].find((each) => equal(each.signatureKey, key));
      if (member) added.push(member);
    } else if ("update" in proposal && senderLeafIndex !== undefined) {
      const update = after.get(senderLeafIndex);
      if (update) updated.push(update);
    }
    if (member && senderLeafIndex !== undefined && senderLeafIndex !== committer) proposed.push(member);
  }
  const by = after.get(committer);
  if (!by) throw invalid("a commit has no sender in the group");
  return { committer: by, added, removed, updated, proposed, removedSelf };
}

const members = (tree: RatchetTree): Map<number, Member> =>
  new Map(leavesOf(tree).map(([index, leaf]) => [index, memberOf(index, leaf)]));
