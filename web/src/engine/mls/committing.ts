/** Creates commits: always with a path, as PublicMessage, with proposals by value. */

import { applyProposals, nextEpochContext, type ClientState } from "ts-mls/clientState.js";
import { createGroupInfo } from "ts-mls/createCommit.js";
import { createConfirmationTag, createContentCommitSignature } from "ts-mls/framedContent.js";
import { makeKeyPackageRef, type KeyPackage } from "ts-mls/keyPackage.js";
import { initializeEpoch } from "ts-mls/keySchedule.js";
import { protectPublicMessage } from "ts-mls/messageProtectionPublic.js";
import { getCommitSecret, pathToPathSecrets } from "ts-mls/pathSecrets.js";
import { mergePrivateKeyPaths, toPrivateKeyPath, updateLeafKey } from "ts-mls/privateKeyPath.js";
import type { Proposal } from "ts-mls/proposal.js";
import type { ProposalOrRef } from "ts-mls/proposalOrRefType.js";
import { emptyPskIndex } from "ts-mls/pskIndex.js";
import { encodeRatchetTree } from "ts-mls/ratchetTree.js";
import { createSecretTree } from "ts-mls/secretTree.js";
import { treeHashRoot } from "ts-mls/treeHash.js";
import { leafToNodeIndex, leafWidth, toLeafIndex, toNodeIndex } from "ts-mls/treemath.js";
import { createUpdatePath, firstCommonAncestor, type PathSecret } from "ts-mls/updatePath.js";
import type { ProposalWithSender } from "ts-mls/unappliedProposals.js";
import { base64ToBytes } from "ts-mls/util/byteArray.js";
import { encryptGroupInfo, encryptGroupSecrets } from "ts-mls/welcome.js";
import { hex, sha256 } from "../bytes";
import { checkProposalList, checkMembers, checkProposal, checkUsableNow, identityOf } from "./checks";
import { asMlsError, invalid, MlsError } from "./errors";
import { effectOf } from "./effects";
import { MlsGroup, MAX_PENDING, storeState, type CommitEffect } from "./group";
import { suite } from "./suite";
import { encode } from "./wire";

/** An own commit. It takes effect if it is the first of its epoch that is fetched. */
export interface OwnCommit {
  group: MlsGroup;
  message: Uint8Array;
  /** For added members; null if there are none. */
  welcome: Uint8Array | null;
  /** Of the group after the commit. */
  groupInfo: Uint8Array;
}

/** The changes to commit. `remove`: leaf indexes. `now`: Unix seconds. */
export interface CommitChanges {
  add?: readonly KeyPackage[];
  remove?: readonly number[];
  now: number;
}

/** Creates a pending commit, which includes waiting proposals. Throws MlsError. */
export async function commit(group: MlsGroup, { add = [], remove = [], now }: CommitChanges): Promise<OwnCommit> {
  if (group.pending.length >= MAX_PENDING)
    throw new MlsError("limit", "too many own commits of this group are pending");
  for (const each of add) checkUsableNow(each, now);
  const proposals: Proposal[] = [
    ...remove.map((removed): Proposal => ({ proposalType: "remove", remove: { removed } })),
    ...add.map((keyPackage): Proposal => ({ proposalType: "add", add: { keyPackage } })),
  ];
  const references = committable(group, proposals);
  let made: NewCommit;
  try {
    made = await build(group.state, references, proposals);
  } catch (error) {
    if (references.length === 0) throw asMlsError(error);
    try {
      made = await build(group.state, [], proposals);
    } catch (second) {
      throw asMlsError(second);
    }
  }
  const pending = { hash: hex(await sha256(made.message)), state: storeState(made.state), effect: made.effect };
  const after = new MlsGroup(made.state);
  return {
    group: group.with({ pending: [...group.pending, pending] }),
    message: made.message,
    welcome: made.welcome,
    groupInfo: await after.groupInfo(),
  };
}

/** Whether a waiting proposal can be committed alone, including path and Welcome. */
export async function isCommittable(state: ClientState, reference: string): Promise<boolean> {
  const waiting = state.unappliedProposals[reference];
  if (!waiting || waiting.senderLeafIndex === undefined) return false; // only proposals of members are included
  if (!["add", "update", "remove"].includes(String(waiting.proposal.proposalType))) return false;
  try {
    await build(state, [reference], []);
    return true;
  } catch {
    return false;
  }
}

/**
 * Returns the references of waiting proposals to include besides `proposals`. Removals come before updates, newer ones
 * before older ones, and there is at most one per leaf.
 */
function committable(group: MlsGroup, proposals: readonly Proposal[]): string[] {
  const own = group.ownIndex;
  const taken = new Set(proposals.flatMap((each) => claims({ proposal: each, senderLeafIndex: own })));
  const waiting = Object.entries(group.state.unappliedProposals)
    .filter(([reference]) => group.sound.has(reference))
    .reverse()
    .sort(([, one], [, other]) => Number(isRemove(other)) - Number(isRemove(one)));
  const chosen: string[] = [];
  for (const [reference, each] of waiting) {
    const needs = claims(each);
    if (needs.some((claim) => taken.has(claim))) continue;
    chosen.push(reference);
    for (const claim of needs) taken.add(claim);
  }
  return chosen;
}

const isRemove = ({ proposal }: ProposalWithSender): boolean => proposal.proposalType === "remove";

/** Returns what a proposal claims exclusively: a commit can contain only one proposal per claim. */
function claims({ proposal, senderLeafIndex }: ProposalWithSender): string[] {
  if ("remove" in proposal) return [`leaf ${proposal.remove.removed}`];
  if ("update" in proposal) return [`leaf ${senderLeafIndex}`, `key ${hex(proposal.update.leafNode.hpkePublicKey)}`];
  if (!("add" in proposal)) return [];
  const leaf = proposal.add.keyPackage.leafNode;
  const keys = [leaf.hpkePublicKey, leaf.signaturePublicKey].map((each) => `key ${hex(each)}`);
  return [`identity ${hex(identityOf(leaf))}`, ...keys];
}

interface NewCommit {
  state: ClientState;
  message: Uint8Array;
  welcome: Uint8Array | null;
  effect: CommitEffect;
}

/** `references`: of waiting proposals, in base64. `values`: proposals by value. */
async function build(state: ClientState, references: readonly string[], values: readonly Proposal[]): Promise<NewCommit> {
  const cs = await suite();
  const own = toLeafIndex(state.privatePath.leafIndex);
  const proposals: ProposalOrRef[] = [
    ...references.map((each): ProposalOrRef => ({ proposalOrRefType: "reference", reference: base64ToBytes(each) })),
    ...values.map((proposal): ProposalOrRef => ({ proposalOrRefType: "proposal", proposal })),
  ];
  const applied = await applyProposals(state, proposals, own, emptyPskIndex, false, cs);
  if (applied.additionalResult.kind !== "memberCommit") throw invalid("not a member's commit");
  checkProposalList(applied.allProposals, false, own);
  for (const each of applied.allProposals) checkProposal(each, state.ratchetTree);
  const { addedLeafNodes } = applied.additionalResult;

  const [tree, path, pathSecrets, leafKey] = await createUpdatePath(
    applied.tree,
    own,
    state.groupContext,
    state.signaturePrivateKey,
    cs,
    addedLeafNodes.map(([index]) => leafToNodeIndex(index)),
  );
  checkMembers(tree);
  const privatePath = mergePrivateKeyPaths(
    updateLeafKey(state.privatePath, await cs.hpke.exportPrivateKey(leafKey)),
    await toPrivateKeyPath(pathToPathSecrets(pathSecrets), own, cs),
  );
  const last = pathSecrets.at(-1);
  const commitSecret =
    last === undefined // no other members
      ? new Uint8Array(cs.kdf.size)
      : await getCommitSecret(tree, toNodeIndex(last.nodeIndex), last.secret, cs.kdf);

  const { signature, framedContent } = await createContentCommitSignature(
    state.groupContext,
    "mls_public_message",
    { proposals, path },
    { senderType: "member", leafIndex: own },
    new Uint8Array(),
    state.signaturePrivateKey,
    cs.signature,
  );
  const treeHash = await treeHashRoot(tree, cs.hash);
  const groupContext = await nextEpochContext(
    state.groupContext,
    "mls_public_message",
    framedContent,
    signature,
    treeHash,
    state.confirmationTag,
    cs.hash,
  );
  const epoch = await initializeEpoch(state.keySchedule.initSecret, commitSecret, groupContext, applied.pskSecret, cs.kdf);
  const confirmationTag = await createConfirmationTag(
    epoch.keySchedule.confirmationKey,
    groupContext.confirmedTranscriptHash,
    cs.hash,
  );
  const publicMessage = await protectPublicMessage(
    state.keySchedule.membershipKey,
    state.groupContext,
    {
      wireformat: "mls_public_message",
      content: framedContent,
      auth: { contentType: "commit", signature, confirmationTag },
    },
    cs,
  );
  const next: ClientState = {
    ...state,
    groupContext,
    ratchetTree: tree,
    secretTree: await createSecretTree(leafWidth(tree.length), epoch.encryptionSecret, cs.kdf),
    keySchedule: epoch.keySchedule,
    privatePath,
    unappliedProposals: {},
    historicalReceiverData: new Map(),
    confirmationTag,
  };
  return {
    state: next,
    message: encode({ version: "mls10", wireformat: "mls_public_message", publicMessage }),
    welcome: await buildWelcome(next, addedLeafNodes, pathSecrets, epoch),
    effect: effectOf(state, tree, applied.allProposals, own),
  };
}

type AddedLeaves = readonly (readonly [number, KeyPackage])[];

async function buildWelcome(
  state: ClientState,
  added: AddedLeaves,
  pathSecrets: readonly PathSecret[],
  epoch: { joinerSecret: Uint8Array; welcomeSecret: Uint8Array },
): Promise<Uint8Array | null> {
  if (added.length === 0) return null;
  const cs = await suite();
  const tree = { extensionType: "ratchet_tree" as const, extensionData: encodeRatchetTree(state.ratchetTree) };
  const info = await createGroupInfo(state.groupContext, state.confirmationTag, state, [tree], cs);
  const encryptedGroupInfo = await encryptGroupInfo(info, epoch.welcomeSecret, cs);
  const own = toLeafIndex(state.privatePath.leafIndex);
  const secrets = await Promise.all(
    added.map(async ([index, keyPackage]) => {
      const ancestor = firstCommonAncestor(state.ratchetTree, toLeafIndex(index), own);
      const pathSecret = pathSecrets.find((each) => each.nodeIndex === ancestor)?.secret;
      const groupSecrets = { joinerSecret: epoch.joinerSecret, pathSecret, psks: [] };
      const key = await cs.hpke.importPublicKey(keyPackage.initKey);
      const { enc, ct } = await encryptGroupSecrets(key, encryptedGroupInfo, groupSecrets, cs.hpke);
      const newMember = await makeKeyPackageRef(keyPackage, cs.hash);
      return { newMember, encryptedGroupSecrets: { kemOutput: enc, ciphertext: ct } };
    }),
  );
  const cipherSuite = state.groupContext.cipherSuite;
  return encode({ version: "mls10", wireformat: "mls_welcome", welcome: { cipherSuite, secrets, encryptedGroupInfo } });
}
