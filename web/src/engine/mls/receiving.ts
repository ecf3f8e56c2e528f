/** Processes received messages: they are validated in full before the state changes. */

import type { ClientState } from "ts-mls/clientState.js";
import { verifyFramedContentSignature, type FramedContent } from "ts-mls/framedContent.js";
import { unprotectPrivateMessage } from "ts-mls/messageProtection.js";
import { unprotectPublicMessage } from "ts-mls/messageProtectionPublic.js";
import type { MLSMessage } from "ts-mls/message.js";
import { decryptSenderData, type PrivateMessage } from "ts-mls/privateMessage.js";
import { processPrivateMessage, processPublicMessage } from "ts-mls/processMessages.js";
import type { Proposal } from "ts-mls/proposal.js";
import { encodeProposal } from "ts-mls/proposal.js";
import type { PublicMessage } from "ts-mls/publicMessage.js";
import { emptyPskIndex } from "ts-mls/pskIndex.js";
import { addLeafNode, removeLeafNode, updateLeafNode, type RatchetTree } from "ts-mls/ratchetTree.js";
import type { SecretTree } from "ts-mls/secretTree.js";
import { toLeafIndex } from "ts-mls/treemath.js";
import type { ProposalWithSender } from "ts-mls/unappliedProposals.js";
import { bytesToBase64 } from "ts-mls/util/byteArray.js";
import { equal, hex, sha256 } from "../bytes";
import { checkCommitSize, checkExternalProposal, checkProposalType, checkLeaf, checkProposalList, checkMembers, checkPath, checkWithoutPath, checkPrivateKeys, checkProposal, checkReplacedLeaf, CONFIG } from "./checks";
import { isCommittable } from "./committing";
import { effectOf } from "./effects";
import { asMlsError, invalid, MlsError } from "./errors";
import { loadState, memberOf, MlsGroup, type CommitEffect, type Member } from "./group";
import { suite } from "./suite";
import { decode } from "./wire";

/** A received message. `epoch`: of a text; a commit leads into `group.epoch`. */
export type Received =
  | { kind: "text"; sender: Member; data: Uint8Array; authenticatedData: Uint8Array; epoch: number }
  | { kind: "proposal"; sender: Member | null; proposal: Proposal }
  | { kind: "commit"; effect: CommitEffect; isOwn: boolean };

/** The result of processing a message. `group`: null if this client was removed. */
export interface Processed {
  group: MlsGroup | null;
  received: Received;
}

/** Checks whether a committer is authorized. Throws MlsError if not. */
export type Validate = (received: Received & { kind: "commit" }) => void;

/** Processes a message, in the order of the server. If it throws MlsError, nothing has changed. */
export async function receive(group: MlsGroup, bytes: Uint8Array, validate: Validate = () => undefined): Promise<Processed> {
  const hash = hex(await sha256(bytes));
  const own = group.pending.find((each) => each.hash === hash);
  if (own) return applyOwnCommit(group, own.effect, loadState(own.state));
  const message = decode(bytes);
  try {
    if (message.wireformat === "mls_private_message") return await processPrivate(group, message, message.privateMessage, validate);
    if (message.wireformat === "mls_public_message") return await processPublic(group, message.publicMessage, validate);
  } catch (error) {
    throw asMlsError(error);
  }
  throw new MlsError("malformed", "it is not a message of a group");
}

function applyOwnCommit(group: MlsGroup, effect: CommitEffect, state: ClientState): Processed {
  return { group: group.advance(state), received: { kind: "commit", effect, isOwn: true } };
}

async function processPrivate(group: MlsGroup, whole: MLSMessage, message: PrivateMessage, validate: Validate): Promise<Processed> {
  const { state } = group;
  if (!equal(message.groupId, state.groupContext.groupId)) throw new MlsError("notForUs", "it is for another group");
  const epoch = Number(message.epoch);
  const past = epoch === group.epoch ? undefined : group.past.get(epoch);
  if (epoch !== group.epoch && (!past || message.contentType !== "application"))
    throw new MlsError("stale", `it is of epoch ${epoch}, but the group is in ${group.epoch}`);
  const source = past ?? { ...state, senderDataSecret: state.keySchedule.senderDataSecret };
  const cs = await suite();
  const sender = await decryptSenderData(message, source.senderDataSecret, cs);
  const leaf = sender && source.ratchetTree[2 * sender.leafIndex];
  if (!sender || leaf?.nodeType !== "leaf") throw invalid("its sender is not in the group");
  const isOwn = sender.leafIndex === group.ownIndex;
  checkGeneration(source.secretTree, sender.leafIndex, sender.generation, message.contentType, isOwn);
  const opened = await unprotectPrivateMessage(
    source.senderDataSecret,
    message,
    source.secretTree,
    source.ratchetTree,
    source.groupContext,
    CONFIG.keyRetentionConfig,
    cs,
  );
  if (isOwn) throw new MlsError("notFromHere", "it is signed by this device's key, but was not made from this state");
  const { content } = opened.content;
  if (content.contentType !== "application") return processHandshake(group, whole, content, validate);
  const next = past
    ? group.with({ past: new Map(group.past).set(epoch, { ...past, secretTree: opened.tree }) })
    : group.with({ state: { ...state, secretTree: opened.tree } });
  const { authenticatedData } = message;
  const member = memberOf(sender.leafIndex, leaf.leaf);
  return { group: next, received: { kind: "text", sender: member, data: content.applicationData, authenticatedData, epoch } };
}

function checkGeneration(tree: SecretTree, index: number, generation: number, contentType: string, isOwn: boolean): void {
  const node = tree[2 * index];
  if (!node) throw invalid("its sender is not in the group");
  const ratchet = contentType === "application" ? node.application : node.handshake;
  if (generation >= ratchet.generation || ratchet.unusedGenerations[generation] !== undefined) return;
  throw isOwn
    ? new MlsError("own", "it was sent by this device: its key was erased")
    : new MlsError("replayed", "it was read before, or is too late");
}

async function processPublic(group: MlsGroup, message: PublicMessage, validate: Validate): Promise<Processed> {
  const { content } = message;
  const { state } = group;
  if (!equal(content.groupId, state.groupContext.groupId)) throw new MlsError("notForUs", "it is for another group");
  if (Number(content.epoch) !== group.epoch) {
    await checkLateSignature(group, message);
    throw new MlsError("stale", `a change is for epoch ${content.epoch}, but the group is in ${group.epoch}`);
  }
  const isOwn = content.sender.senderType === "member" && content.sender.leafIndex === group.ownIndex;
  if (isOwn && content.contentType === "proposal") throw new MlsError("own", "a proposal was sent by this device");
  await unprotectPublicMessage(state.keySchedule.membershipKey, state.groupContext, state.ratchetTree, message, await suite());
  if (isOwn) throw new MlsError("notFromHere", "it is signed by this device's key, but was not made from this state");
  return processHandshake(group, { version: "mls10", wireformat: "mls_public_message", publicMessage: message }, content, validate);
}

/** Verifies the signature of a change for a past epoch, if that is still known. */
async function checkLateSignature(group: MlsGroup, { content, auth }: PublicMessage): Promise<void> {
  const past = group.past.get(Number(content.epoch));
  if (!past) return;
  let key: Uint8Array | undefined;
  if (content.sender.senderType === "member") {
    const leaf = past.ratchetTree[2 * content.sender.leafIndex];
    key = leaf?.nodeType === "leaf" ? leaf.leaf.signaturePublicKey : new Uint8Array(57);
  } else if (content.contentType === "commit") key = content.commit.path?.leafNode.signaturePublicKey;
  if (!key) return;
  const { signature } = await suite();
  if (!(await verifyFramedContentSignature(key, "mls_public_message", content, auth, past.groupContext, signature)))
    throw new MlsError("forged", "the signature of a change is wrong");
}

/** `message`: its signature is verified. */
async function processHandshake(group: MlsGroup, message: MLSMessage, content: FramedContent, validate: Validate): Promise<Processed> {
  if (content.contentType === "commit") return processCommit(group, message, content, validate);
  if (content.contentType !== "proposal") throw invalid("a text is not encrypted");
  return processProposal(group, message, content.proposal, content);
}

const MAX_WAITING = 1_024;
const MAX_WAITING_PER_SENDER = 64;
const MAX_BYTES_PER_SENDER = 262_144;

async function processProposal(group: MlsGroup, message: MLSMessage, proposal: Proposal, content: FramedContent): Promise<Processed> {
  checkProposalType(proposal);
  if (content.sender.senderType === "external") checkExternalProposal(proposal);
  const by = content.sender.senderType === "member" ? content.sender.leafIndex : undefined;
  const waiting = Object.values(group.state.unappliedProposals);
  const same = [proposal, ...waiting.filter((each) => each.senderLeafIndex === by).map((each) => each.proposal)];
  const bytes = same.reduce((sum, each) => sum + encodeProposal(each).length, 0);
  if (waiting.length >= MAX_WAITING || same.length > MAX_WAITING_PER_SENDER || bytes > MAX_BYTES_PER_SENDER)
    throw new MlsError("limit", "too many proposals are waiting");
  const state = await processWithTsMls(group.state, message);
  const reference = Object.keys(state.unappliedProposals).find((each) => !(each in group.state.unappliedProposals));
  const sound = new Set(group.sound);
  if (reference && (await isCommittable({ ...state, unappliedProposals: { [reference]: state.unappliedProposals[reference]! } }, reference)))
    sound.add(reference);
  const leaf = by === undefined ? undefined : group.state.ratchetTree[2 * by];
  const sender = leaf?.nodeType === "leaf" && by !== undefined ? memberOf(by, leaf.leaf) : null;
  return { group: group.with({ state, sound }), received: { kind: "proposal", sender, proposal } };
}

async function processCommit(
  group: MlsGroup,
  message: MLSMessage,
  content: FramedContent & { contentType: "commit" },
  validate: Validate,
): Promise<Processed> {
  const { state } = group;
  const isExternal = content.sender.senderType === "new_member_commit";
  if (!isExternal && content.sender.senderType !== "member") throw invalid("a commit has an unauthorized sender");
  const by = content.sender.senderType === "member" ? content.sender.leafIndex : -1;
  const { proposals: listed, path } = content.commit;
  const proposals = listed.map((each): ProposalWithSender => {
    if (each.proposalOrRefType === "proposal") return { proposal: each.proposal, senderLeafIndex: by < 0 ? undefined : by };
    const waiting = isExternal ? undefined : state.unappliedProposals[bytesToBase64(each.reference)];
    if (!waiting) throw invalid("a commit refers to an unknown proposal");
    return waiting;
  });
  checkCommitSize(proposals, state.ratchetTree);
  checkProposalList(proposals, isExternal, by);
  for (const each of proposals) checkProposal(each, state.ratchetTree);
  const removesOwn = proposals.some(({ proposal }) => "remove" in proposal && proposal.remove.removed === group.ownIndex);
  if (path) {
    checkLeaf(path.leafNode);
    const former = isExternal ? proposals.flatMap(({ proposal }) => ("remove" in proposal ? [proposal.remove.removed] : [])) : [by];
    for (const index of former) {
      const node = state.ratchetTree[2 * index];
      if (node?.nodeType !== "leaf") throw invalid("a commit has no sender in the group");
      checkReplacedLeaf(node.leaf, path.leafNode);
    }
  } else if (isExternal) throw invalid("an external commit has no path");
  else checkWithoutPath(proposals);
  const applied = apply(state.ratchetTree, proposals);
  const [withNew, newNode] = isExternal && path ? addLeafNode(applied.tree, path.leafNode) : [applied.tree, 2 * by];
  if (path) checkPath(withNew, newNode / 2, path, applied.added, applied.tree);

  // Before the expensive steps. The committer still has its former leaf.
  validate({ kind: "commit", effect: effectOf(state, withNew, proposals, newNode / 2), isOwn: false });

  const next = removesOwn ? undefined : await processWithTsMls(state, message);
  const tree = next?.ratchetTree ?? withNew; // a removed client cannot process the path
  checkMembers(tree);
  const committer = isExternal
    ? tree.findIndex((node) => node?.nodeType === "leaf" && path && equal(node.leaf.hpkePublicKey, path.leafNode.hpkePublicKey)) / 2
    : by;
  const effect = effectOf(state, tree, proposals, committer);
  if (!next) return { group: null, received: { kind: "commit", effect, isOwn: false } };
  checkPrivateKeys(next, state.privatePath.privateKeys);
  return { group: group.advance(next), received: { kind: "commit", effect, isOwn: false } };
}

/** Returns the tree after the proposals of a commit, without its path. `added`: the nodes of the new leaves. */
function apply(before: RatchetTree, proposals: readonly ProposalWithSender[]): { tree: RatchetTree; added: Set<number> } {
  let tree = before;
  const added = new Set<number>();
  for (const { proposal, senderLeafIndex } of proposals)
    if ("update" in proposal && senderLeafIndex !== undefined) tree = updateLeafNode(tree, proposal.update.leafNode, toLeafIndex(senderLeafIndex));
  for (const { proposal } of proposals) if ("remove" in proposal) tree = removeLeafNode(tree, toLeafIndex(proposal.remove.removed));
  for (const { proposal } of proposals) {
    if (!("add" in proposal)) continue;
    const [next, node] = addLeafNode(tree, proposal.add.keyPackage.leafNode);
    tree = next;
    added.add(node);
  }
  return { tree, added };
}

async function processWithTsMls(state: ClientState, message: MLSMessage): Promise<ClientState> {
  const cs = await suite();
  const result =
    message.wireformat === "mls_private_message"
      ? await processPrivateMessage(state, message.privateMessage, emptyPskIndex, cs)
      : message.wireformat === "mls_public_message"
        ? await processPublicMessage(state, message.publicMessage, emptyPskIndex, cs)
        : undefined;
  if (!result) throw invalid("it is not a message of a group");
  return result.newState;
}
