/** Validates leaves, key packages, trees and proposals, beyond the checks of ts-mls (RFC 9420, 7.3, 10.1, 12.2). */

import { encodeLeafNode, type LeafNode } from "ts-mls/leafNode.js";
import type { ClientConfig } from "ts-mls/clientConfig.js";
import type { GroupState } from "ts-mls/clientState.js";
import type { PrivateKeyPath } from "ts-mls/privateKeyPath.js";
import type { Credential } from "ts-mls/credential.js";
import type { Extension } from "ts-mls/extension.js";
import type { GroupContext } from "ts-mls/groupContext.js";
import type { KeyPackage } from "ts-mls/keyPackage.js";
import type { Proposal } from "ts-mls/proposal.js";
import { filteredDirectPathAndCopathResolution, getHpkePublicKey, type RatchetTree } from "ts-mls/ratchetTree.js";
import { toLeafIndex } from "ts-mls/treemath.js";
import type { UpdatePath } from "ts-mls/updatePath.js";
import type { ProposalWithSender } from "ts-mls/unappliedProposals.js";
import { encode } from "ts-mls/codec/tlsEncoder.js";
import { decodeVarLenType, varLenTypeEncoder } from "ts-mls/codec/variableLength.js";
import { decodeExternalSender, externalSenderEncoder } from "ts-mls/externalSender.js";
import { decodeRequiredCapabilities, encodeRequiredCapabilities } from "ts-mls/requiredCapabilities.js";
import { equal, hex } from "../bytes";
import { invalid, MlsError } from "./errors";
import { isGoodKemKey, publicKemKey, SIGNATURE_KEY_BYTES, SUITE_NAME } from "./suite";

export const ID_BYTES = 16;
/** Leaves of a group that a browser accepts, including blank ones: each costs processor time in every commit. */
export const MAX_LEAVES = 512;
export const MAX_LEAF_BYTES = 2_048;
const MAX_EXTENSION_BYTES = 16_384;
const MAX_LIFETIME = 400n * 86_400n;
export const LAST_RESORT = 10;

type Place = "leaf" | "keyPackage" | "groupContext" | "groupInfo";

/** The place of each extension type (17.3). Other types may be anywhere. */
const PLACES = new Map<string | number, Place>([
  ["application_id", "leaf"],
  ["ratchet_tree", "groupInfo"],
  ["required_capabilities", "groupContext"],
  ["external_pub", "groupInfo"],
  ["external_senders", "groupContext"],
  [LAST_RESORT, "keyPackage"],
]);

export function checkExtensions(extensions: readonly Extension[], place: Place): void {
  if (new Set(extensions.map((each) => each.extensionType)).size !== extensions.length)
    throw invalid("a list has two extensions of one type");
  if (extensions.some((each) => (PLACES.get(each.extensionType) ?? place) !== place))
    throw invalid("an extension is where it does not belong");
  const bytes = extensions.reduce((sum, each) => sum + each.extensionData.length, 0);
  if (place !== "groupInfo" && bytes > MAX_EXTENSION_BYTES) throw new MlsError("limit", "extensions are too large");
}

/** Whether a credential contains a user id. The sender that the server names is checked later. */
export const isUser = (credential: Credential): boolean =>
  credential.credentialType === "basic" && credential.identity.length === ID_BYTES;

export const identityOf = (leaf: LeafNode): Uint8Array =>
  leaf.credential.credentialType === "basic" ? leaf.credential.identity : new Uint8Array();

export function checkLeaf(leaf: LeafNode): void {
  if (encodeLeafNode(leaf).length > MAX_LEAF_BYTES) throw new MlsError("limit", "a leaf is too large");
  if (!isGoodKemKey(leaf.hpkePublicKey)) throw invalid("a leaf has an encryption key that yields no secret");
  if (leaf.signaturePublicKey.length !== SIGNATURE_KEY_BYTES) throw invalid("a leaf has a signature key of the wrong length");
  if (!isUser(leaf.credential)) throw invalid("a member's credential does not contain a user id");
  checkExtensions(leaf.extensions, "leaf");
  const can = leaf.capabilities;
  if (!can.versions.includes("mls10") || !can.ciphersuites.includes(SUITE_NAME))
    throw invalid("a leaf does not support the version or the cipher suite of the group");
  if (!can.credentials.includes("basic")) throw invalid("a leaf does not support its own credential");
  const own = leaf.extensions.map((each) => each.extensionType);
  if (own.some((each) => typeof each === "number" && !can.extensions.includes(each)))
    throw invalid("a leaf carries an extension that it does not support");
  if (leaf.leafNodeSource === "key_package") {
    const lifetime = leaf.lifetime.notAfter - leaf.lifetime.notBefore;
    if (lifetime < 0n || lifetime > MAX_LIFETIME) throw invalid("a leaf has an unacceptable lifetime");
  }
}

export function checkKeyPackage(keyPackage: KeyPackage): void {
  if (keyPackage.cipherSuite !== SUITE_NAME) throw invalid("a key package is for another cipher suite");
  if (keyPackage.leafNode.leafNodeSource !== "key_package") throw invalid("a key package's leaf is from a group");
  checkLeaf(keyPackage.leafNode);
  if (!isGoodKemKey(keyPackage.initKey)) throw invalid("a key package has an init key that yields no secret");
  if (equal(keyPackage.initKey, keyPackage.leafNode.hpkePublicKey)) throw invalid("a key package uses one key twice");
  checkExtensions(keyPackage.extensions, "keyPackage");
}

const SKEW = 86_400n;

/** Checks that a key package is valid now, which only the adding member does. `now`: Unix seconds. */
export function checkUsableNow(keyPackage: KeyPackage, now: number): void {
  const { leafNode } = keyPackage;
  if (leafNode.leafNodeSource !== "key_package") throw invalid("a key package's leaf is from a group");
  if (leafNode.lifetime.notBefore > BigInt(now) + SKEW) throw invalid("a key package is not valid yet");
  if (leafNode.lifetime.notAfter < BigInt(now)) throw invalid("a key package has expired");
}

/** Returns the leaves of a tree with their indexes. */
export function leavesOf(tree: RatchetTree): [number, LeafNode][] {
  return tree.flatMap((node, at) => (node?.nodeType === "leaf" ? [[at / 2, node.leaf] as [number, LeafNode]] : []));
}

/**
 * Checks that the private keys derived from a path match the public keys of the tree (7.5): otherwise others would encrypt
 * to unknown keys. `former`: keys that were checked before.
 */
export function checkPrivateKeys(state: GroupState, former: PrivateKeyPath["privateKeys"] = {}): void {
  for (const [index, key] of Object.entries(state.privatePath.privateKeys)) {
    const node = state.ratchetTree[Number(index)];
    const old = former[Number(index)];
    if (!node || (old && equal(old, key))) continue;
    const publicKey = node.nodeType === "leaf" ? node.leaf.hpkePublicKey : node.parent.hpkePublicKey;
    if (!equal(publicKemKey(key), publicKey)) throw invalid("a path yields a key that differs from the tree");
  }
}

/** Checks that the keys and identities of all members checkDistinct. */
export function checkMembers(tree: RatchetTree): void {
  const leaves = leavesOf(tree).map(([, leaf]) => leaf);
  if (tree.length > 2 * MAX_LEAVES) throw new MlsError("limit", `a group has more than ${MAX_LEAVES} leaves`);
  checkDistinct(leaves.map((each) => each.signaturePublicKey), "two members have the same signature key");
  checkDistinct(leaves.map(identityOf), "two members have the same identity");
  const keys = tree.flatMap((node) =>
    node === undefined ? [] : [node.nodeType === "leaf" ? node.leaf.hpkePublicKey : node.parent.hpkePublicKey],
  );
  checkDistinct(keys, "two nodes of a tree have the same encryption key");
}

function checkDistinct(values: Uint8Array[], sentence: string): void {
  if (new Set(values.map(hex)).size !== values.length) throw invalid(sentence);
}

/** Checks a received tree, before ts-mls validates it. */
export function checkTree(tree: RatchetTree, context: GroupContext): void {
  if (context.cipherSuite !== SUITE_NAME) throw invalid("a group uses another cipher suite");
  checkContext(context.extensions, tree);
  checkMembers(tree);
  for (const [, leaf] of leavesOf(tree)) checkLeaf(leaf);
  for (const node of tree)
    if (node?.nodeType === "parent") {
      if (!isGoodKemKey(node.parent.hpkePublicKey)) throw invalid("a node has a key that yields no secret");
      const unmerged = node.parent.unmergedLeaves;
      if (unmerged.some((each, at) => at > 0 && each <= unmerged[at - 1]!)) throw invalid("unmerged leaves are not in order");
    }
}

const isBetween = (value: number, from: number, to: number): boolean => value >= from && value <= to;

/** Checks the extensions of a group: known, in the right place, and supported by all members. */
function checkContext(extensions: readonly Extension[], tree: RatchetTree): void {
  checkExtensions(extensions, "groupContext");
  if (extensions.some((each) => typeof each.extensionType === "number"))
    throw invalid("the group uses an extension that this client does not support");
  const senders = extensions.find((each) => each.extensionType === "external_senders")?.extensionData;
  if (senders) checkSenders(senders);
  const data = extensions.find((each) => each.extensionType === "required_capabilities")?.extensionData;
  if (data === undefined) return;
  const required = decodeRequiredCapabilities(data, 0)?.[0];
  if (!required || !equal(encodeRequiredCapabilities(required), data)) throw invalid("the required capabilities are malformed");
  for (const [, { capabilities: can }] of leavesOf(tree)) {
    const isSupported =
      required.extensionTypes.every((each) => isBetween(each, 1, 5) || can.extensions.includes(each)) &&
      required.proposalTypes.every((each) => isBetween(each, 1, 7) || can.proposals.includes(each)) &&
      required.credentialTypes.every((each) => can.credentials.includes(each));
    if (!isSupported) throw invalid("a member lacks required capabilities");
  }
}

const MAX_SENDERS = 256;

/** Checks the list of external senders (12.1.8.1). */
function checkSenders(data: Uint8Array): void {
  const found = decodeVarLenType(decodeExternalSender)(data, 0)?.[0];
  if (!found || !equal(encode(varLenTypeEncoder(externalSenderEncoder))(found), data))
    throw invalid("the list of external senders is malformed");
  if (found.length > MAX_SENDERS) throw new MlsError("limit", "too many external senders");
  if (!found.every((each) => isUser(each.credential))) throw invalid("a credential does not contain a user id");
}

const EXTERNAL_PROPOSALS = new Set<Proposal["proposalType"]>(["add", "remove", "group_context_extensions"]);

/** Checks a proposal of an external sender (12.1.8). */
export function checkExternalProposal(proposal: Proposal): void {
  if (!EXTERNAL_PROPOSALS.has(proposal.proposalType)) throw invalid("only members may send this proposal");
}

const ALLOWED_PROPOSALS = new Set<Proposal["proposalType"]>(["add", "update", "remove", "external_init", "group_context_extensions"]);

/** Rejects proposals that no client uses: pre-shared keys and reinitialization. */
export function checkProposalType(proposal: Proposal): void {
  if (!ALLOWED_PROPOSALS.has(proposal.proposalType))
    throw new MlsError("unwanted", `proposals of type ${proposal.proposalType} are not supported`);
}

/** Checks a single proposal. `tree`: before the commit. */
export function checkProposal({ proposal, senderLeafIndex }: ProposalWithSender, tree: RatchetTree): void {
  checkProposalType(proposal);
  if (typeof proposal.proposalType !== "string") return;
  if (proposal.proposalType === "add") checkKeyPackage(proposal.add.keyPackage);
  if (proposal.proposalType === "group_context_extensions")
    checkContext(proposal.groupContextExtensions.extensions, tree);
  if (proposal.proposalType === "update") {
    const former = senderLeafIndex === undefined ? undefined : tree[2 * senderLeafIndex];
    if (former?.nodeType !== "leaf" || proposal.update.leafNode.leafNodeSource !== "update")
      throw invalid("an update has no sender in the group");
    checkLeaf(proposal.update.leafNode);
    checkReplacedLeaf(former.leaf, proposal.update.leafNode);
  }
}

/** Checks a leaf that replaces another one of the same member. */
export function checkReplacedLeaf(former: LeafNode, leaf: LeafNode): void {
  if (!equal(identityOf(former), identityOf(leaf))) throw invalid("a member changes its identity");
  if (equal(former.hpkePublicKey, leaf.hpkePublicKey)) throw invalid("a leaf is renewed with its old key");
}

/** Limits the cost of a commit before it is validated. */
export function checkCommitSize(proposals: readonly ProposalWithSender[], tree: RatchetTree): void {
  const added = proposals.filter(({ proposal }) => proposal.proposalType === "add").length;
  const removed = proposals.filter(({ proposal }) => proposal.proposalType === "remove").length;
  const isTooLarge = leavesOf(tree).length - removed + added > MAX_LEAVES || proposals.length > 2 * MAX_LEAVES;
  if (isTooLarge) throw new MlsError("limit", `a group has more than ${MAX_LEAVES} leaves`);
}

/** Checks the combination of proposals in a commit. `isExternal`: its sender joins by it. */
export function checkProposalList(proposals: readonly ProposalWithSender[], isExternal: boolean, committer: number): void {
  const count = (type: string): number => proposals.filter((each) => each.proposal.proposalType === type).length;
  if (isExternal) {
    if (count("external_init") !== 1 || count("remove") > 1) throw invalid("an external commit has the wrong proposals");
    if (count("external_init") + count("remove") !== proposals.length)
      throw invalid("an external commit contains a proposal that only members may commit");
    return;
  }
  if (count("external_init") > 0) throw invalid("a member's commit contains an external initialization");
  if (count("group_context_extensions") > 1) throw invalid("a commit changes the extensions of the group twice");
  const changed = proposals.flatMap(({ proposal, senderLeafIndex }) =>
    proposal.proposalType === "update" && typeof proposal.proposalType === "string"
      ? [senderLeafIndex ?? committer]
      : proposal.proposalType === "remove" && "remove" in proposal
        ? [proposal.remove.removed]
        : [],
  );
  if (changed.includes(committer)) throw invalid("a committer removes or updates itself");
  if (new Set(changed).size !== changed.length) throw invalid("a commit updates or removes one member twice");
}

const NEEDS_PATH = new Set<Proposal["proposalType"]>(["update", "remove", "external_init", "group_context_extensions"]);

/** Checks that a commit without a path only adds members (12.4). */
export function checkWithoutPath(proposals: readonly ProposalWithSender[]): void {
  if (proposals.length === 0 || proposals.some((each) => NEEDS_PATH.has(each.proposal.proposalType)))
    throw invalid("a commit lacks its path");
}

/**
 * Checks the form of a path, and that its keys are new (7.6, 12.4.2). `tree`: after the proposals, with the committer's
 * leaf, before the path. `added`: nodes of members that the commit adds. `former`: the tree without a new leaf.
 */
export function checkPath(tree: RatchetTree, committer: number, path: UpdatePath, added: ReadonlySet<number>, former: RatchetTree): void {
  const needed = filteredDirectPathAndCopathResolution(toLeafIndex(committer), tree);
  if (needed.length !== path.nodes.length) throw invalid("a path has the wrong number of nodes");
  path.nodes.forEach(({ encryptedPathSecret, hpkePublicKey }, at) => {
    if (encryptedPathSecret.length !== needed[at]!.resolution.filter((each) => !added.has(each)).length)
      throw invalid("a path is encrypted to the wrong recipients");
    if (!isGoodKemKey(hpkePublicKey)) throw invalid("a node has a key that yields no secret");
  });
  const keys = [path.leafNode.hpkePublicKey, ...path.nodes.map((each) => each.hpkePublicKey)];
  const known = former.flatMap((node) => (node ? [getHpkePublicKey(node)] : []));
  checkDistinct(keys, "a path uses one key twice");
  const all = new Set(known.map(hex));
  if (keys.some((each) => all.has(hex(each)))) throw invalid("a path reuses a key of the tree");
}

/** Past epochs whose late messages can still be read. */
export const MAX_PAST_EPOCHS = 3;

export const CONFIG: ClientConfig = {
  keyRetentionConfig: { retainKeysForGenerations: 1_024, retainKeysForEpochs: MAX_PAST_EPOCHS, maximumForwardRatchetSteps: 1_024 },
  lifetimeConfig: { maximumTotalLifetime: MAX_LIFETIME, validateLifetimeOnReceive: false },
  paddingConfig: { kind: "alwaysPad", paddingLength: 0 },
  authService: { validateCredential: async (credential) => isUser(credential) },
  keyPackageEqualityConfig: {
    compareKeyPackages: (one, other) => isSameClient(one.leafNode, other.leafNode),
    compareKeyPackageToLeafNode: (one, leaf) => isSameClient(one.leafNode, leaf),
  },
};

function isSameClient(one: LeafNode, other: LeafNode): boolean {
  return (
    equal(identityOf(one), identityOf(other)) ||
    equal(one.signaturePublicKey, other.signaturePublicKey) ||
    equal(one.hpkePublicKey, other.hpkePublicKey)
  );
}
