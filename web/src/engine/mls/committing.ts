/** Making a commit: always with new own keys, as a PublicMessage, with the proposals in it. */

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
import { checkList, checkMembers, checkProposal, checkUsableNow, identityOf } from "./checks";
import { asMlsError, invalid, MlsError } from "./errors";
import { effectOf } from "./effects";
import { MlsGroup, MOST_PENDING, storeState, type Effect } from "./group";
import { suite } from "./suite";
import { encode } from "./wire";

/** An own commit: what to send. It counts when it comes back before any other of its epoch. */
export interface Commitment {
  group: MlsGroup;
  message: Uint8Array;
  /** For those whom it adds; null: nobody. */
  welcome: Uint8Array | null;
  /** Of the group after it. */
  groupInfo: Uint8Array;
}

/** What a commit changes. `remove`: leaf indexes. `now`: Unix seconds. */
export interface Wishes {
  add?: readonly KeyPackage[];
  remove?: readonly number[];
  now: number;
}

/** Makes a commit, which is pending until it counts. Proposals that wait go along. Throws MlsError. */
export async function commit(group: MlsGroup, { add = [], remove = [], now }: Wishes): Promise<Commitment> {
  if (group.pending.length >= MOST_PENDING)
    throw new MlsError("limit", "too many own changes of this group have not come back yet");
  for (const each of add) checkUsableNow(each, now);
  const wanted: Proposal[] = [
    ...remove.map((removed): Proposal => ({ proposalType: "remove", remove: { removed } })),
    ...add.map((keyPackage): Proposal => ({ proposalType: "add", add: { keyPackage } })),
  ];
  const references = committable(group, wanted);
  let made: Made;
  try {
    made = await make(group.state, references, wanted);
  } catch (error) {
    if (references.length === 0) throw asMlsError(error);
    try {
      made = await make(group.state, [], wanted);
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

/** Tells whether a proposal that waits could be committed alone: also its path and its Welcome may fail. */
export async function isSound(state: ClientState, reference: string): Promise<boolean> {
  const waiting = state.unappliedProposals[reference];
  if (!waiting || waiting.senderLeafIndex === undefined) return false; // only members' wishes are taken along
  if (!["add", "update", "remove"].includes(String(waiting.proposal.proposalType))) return false;
  try {
    await make(state, [reference], []);
    return true;
  } catch {
    return false;
  }
}

/** The waiting proposals for a commit beside `wanted`: a removal before an update, the newest first, one of a leaf. */
function committable(group: MlsGroup, wanted: readonly Proposal[]): string[] {
  const own = group.ownIndex;
  const taken = new Set(wanted.flatMap((each) => claims({ proposal: each, senderLeafIndex: own })));
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

/** What a proposal needs for itself: of two that claim the same, one commit can have only one. */
function claims({ proposal, senderLeafIndex }: ProposalWithSender): string[] {
  if ("remove" in proposal) return [`leaf ${proposal.remove.removed}`];
  if ("update" in proposal) return [`leaf ${senderLeafIndex}`, `key ${hex(proposal.update.leafNode.hpkePublicKey)}`];
  if (!("add" in proposal)) return [];
  const leaf = proposal.add.keyPackage.leafNode;
  const keys = [leaf.hpkePublicKey, leaf.signaturePublicKey].map((each) => `key ${hex(each)}`);
  return [`identity ${hex(identityOf(leaf))}`, ...keys];
}

interface Made {
  state: ClientState;
  message: Uint8Array;
  welcome: Uint8Array | null;
  effect: Effect;
}

/** `references`: of waiting proposals, in base64. */
async function make(state: ClientState, references: readonly string[], wanted: readonly Proposal[]): Promise<Made> {
  const cs = await suite();
  const own = toLeafIndex(state.privatePath.leafIndex);
  const proposals: ProposalOrRef[] = [
    ...references.map((each): ProposalOrRef => ({ proposalOrRefType: "reference", reference: base64ToBytes(each) })),
    ...wanted.map((proposal): ProposalOrRef => ({ proposalOrRefType: "proposal", proposal })),
  ];
  const applied = await applyProposals(state, proposals, own, emptyPskIndex, false, cs);
  if (applied.additionalResult.kind !== "memberCommit") throw invalid("a commit of a member is something else");
  checkList(applied.allProposals, false, own);
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
    last === undefined // nobody else is there
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
    welcome: await welcome(next, addedLeafNodes, pathSecrets, epoch),
    effect: effectOf(state, tree, applied.allProposals, own),
  };
}

type Added = readonly (readonly [number, KeyPackage])[];

async function welcome(
  state: ClientState,
  added: Added,
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
