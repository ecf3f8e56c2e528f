/** What leaves, key packages, trees and lists of proposals must be like, beyond what ts-mls checks (RFC 9420, 7.3, 10.1, 12.2). */

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
/** Members of a group that a browser takes, blank leaves too: each costs processor time in every commit. */
export const MOST_LEAVES = 512;
export const MOST_LEAF_BYTES = 2_048;
const MOST_EXTENSION_BYTES = 16_384;
const LONGEST_LIFETIME = 400n * 86_400n;
export const LAST_RESORT = 10;

type Place = "leaf" | "keyPackage" | "groupContext" | "groupInfo";

/** Where an extension may be (17.3). Types that are not here may be anywhere. */
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
  if (place !== "groupInfo" && bytes > MOST_EXTENSION_BYTES) throw new MlsError("limit", "extensions are too large");
}

/** A credential has the id of a user. Which one it has to be is known once the server names the sender. */
export const isUser = (credential: Credential): boolean =>
  credential.credentialType === "basic" && credential.identity.length === ID_BYTES;

export const identityOf = (leaf: LeafNode): Uint8Array =>
  leaf.credential.credentialType === "basic" ? leaf.credential.identity : new Uint8Array();

export function checkLeaf(leaf: LeafNode): void {
  if (encodeLeafNode(leaf).length > MOST_LEAF_BYTES) throw new MlsError("limit", "a leaf is too large");
  if (!isGoodKemKey(leaf.hpkePublicKey)) throw invalid("a leaf has an encryption key that gives no secret");
  if (leaf.signaturePublicKey.length !== SIGNATURE_KEY_BYTES) throw invalid("a leaf has a signature key of another length");
  if (!isUser(leaf.credential)) throw invalid("a member's credential is not that of a user");
  checkExtensions(leaf.extensions, "leaf");
  const can = leaf.capabilities;
  if (!can.versions.includes("mls10") || !can.ciphersuites.includes(SUITE_NAME))
    throw invalid("a leaf does not support the version or the cipher suite of the group");
  if (!can.credentials.includes("basic")) throw invalid("a leaf does not support its own credential");
  const own = leaf.extensions.map((each) => each.extensionType);
  if (own.some((each) => typeof each === "number" && !can.extensions.includes(each)))
    throw invalid("a leaf carries an extension that it does not support");
  if (leaf.leafNodeSource === "key_package") {
    const span = leaf.lifetime.notAfter - leaf.lifetime.notBefore;
    if (span < 0n || span > LONGEST_LIFETIME) throw invalid("a leaf is valid for longer than is acceptable, or never");
  }
}

export function checkKeyPackage(keyPackage: KeyPackage): void {
  if (keyPackage.cipherSuite !== SUITE_NAME) throw invalid("a key package is for another cipher suite");
  if (keyPackage.leafNode.leafNodeSource !== "key_package") throw invalid("a key package has a leaf of a group");
  checkLeaf(keyPackage.leafNode);
  if (!isGoodKemKey(keyPackage.initKey)) throw invalid("a key package has an init key that gives no secret");
  if (equal(keyPackage.initKey, keyPackage.leafNode.hpkePublicKey)) throw invalid("a key package has one key twice");
  checkExtensions(keyPackage.extensions, "keyPackage");
}

const SKEW = 86_400n;

/** What only holds for who adds somebody: that the key package may be used now. `now`: Unix seconds. */
export function checkUsableNow(keyPackage: KeyPackage, now: number): void {
  const { leafNode } = keyPackage;
  if (leafNode.leafNodeSource !== "key_package") throw invalid("a key package has a leaf of a group");
  if (leafNode.lifetime.notBefore > BigInt(now) + SKEW) throw invalid("a key package may not be used yet");
  if (leafNode.lifetime.notAfter < BigInt(now)) throw invalid("a key package is too old to be used");
}

/** The leaves of a tree, by their indexes. */
export function leavesOf(tree: RatchetTree): [number, LeafNode][] {
  return tree.flatMap((node, at) => (node?.nodeType === "leaf" ? [[at / 2, node.leaf] as [number, LeafNode]] : []));
}

/**
 * The private keys that were derived from a path are those of the nodes in the tree (7.5). `former`: keys of before, which
 * are not looked at again. Otherwise others would encrypt to keys that nobody has.
 */
export function checkPrivateKeys(state: GroupState, former: PrivateKeyPath["privateKeys"] = {}): void {
  for (const [index, key] of Object.entries(state.privatePath.privateKeys)) {
    const node = state.ratchetTree[Number(index)];
    const old = former[Number(index)];
    if (!node || (old && equal(old, key))) continue;
    const publicKey = node.nodeType === "leaf" ? node.leaf.hpkePublicKey : node.parent.hpkePublicKey;
    if (!equal(publicKemKey(key), publicKey)) throw invalid("a path gives a key that is not the one in the tree");
  }
}

/** What leaves must be like together: keys and identities differ. */
export function checkMembers(tree: RatchetTree): void {
  const leaves = leavesOf(tree).map(([, leaf]) => leaf);
  if (tree.length > 2 * MOST_LEAVES) throw new MlsError("limit", `a group has more than ${MOST_LEAVES} places`);
  differ(leaves.map((each) => each.signaturePublicKey), "two members have one signature key");
  differ(leaves.map(identityOf), "two members have one identity");
  const keys = tree.flatMap((node) =>
    node === undefined ? [] : [node.nodeType === "leaf" ? node.leaf.hpkePublicKey : node.parent.hpkePublicKey],
  );
  differ(keys, "two nodes of a tree have one encryption key");
}

function differ(values: Uint8Array[], sentence: string): void {
  if (new Set(values.map(hex)).size !== values.length) throw invalid(sentence);
}

/** A tree that comes from somebody else, before ts-mls looks at it in full. */
export function checkTree(tree: RatchetTree, context: GroupContext): void {
  if (context.cipherSuite !== SUITE_NAME) throw invalid("a group is of another cipher suite");
  checkContext(context.extensions, tree);
  checkMembers(tree);
  for (const [, leaf] of leavesOf(tree)) checkLeaf(leaf);
  for (const node of tree)
    if (node?.nodeType === "parent") {
      if (!isGoodKemKey(node.parent.hpkePublicKey)) throw invalid("a node has a key that gives no secret");
      const unmerged = node.parent.unmergedLeaves;
      if (unmerged.some((each, at) => at > 0 && each <= unmerged[at - 1]!)) throw invalid("unmerged leaves are not in order");
    }
}

const isBetween = (value: number, from: number, to: number): boolean => value >= from && value <= to;

/** The extensions of a group: known ones, in their place, which all members support. */
function checkContext(extensions: readonly Extension[], tree: RatchetTree): void {
  checkExtensions(extensions, "groupContext");
  if (extensions.some((each) => typeof each.extensionType === "number"))
    throw invalid("the group uses an extension that this client does not support");
  const senders = extensions.find((each) => each.extensionType === "external_senders")?.extensionData;
  if (senders) checkSenders(senders);
  const data = extensions.find((each) => each.extensionType === "required_capabilities")?.extensionData;
  if (data === undefined) return;
  const required = decodeRequiredCapabilities(data, 0)?.[0];
  if (!required || !equal(encodeRequiredCapabilities(required), data)) throw invalid("what the group requires cannot be read");
  for (const [, { capabilities: can }] of leavesOf(tree)) {
    const isSupported =
      required.extensionTypes.every((each) => isBetween(each, 1, 5) || can.extensions.includes(each)) &&
      required.proposalTypes.every((each) => isBetween(each, 1, 7) || can.proposals.includes(each)) &&
      required.credentialTypes.every((each) => can.credentials.includes(each));
    if (!isSupported) throw invalid("a member does not have the capabilities that the group requires");
  }
}

const MOST_SENDERS = 256;

/** Who may propose changes without being a member (12.1.8.1). */
function checkSenders(data: Uint8Array): void {
  const found = decodeVarLenType(decodeExternalSender)(data, 0)?.[0];
  if (!found || !equal(encode(varLenTypeEncoder(externalSenderEncoder))(found), data))
    throw invalid("the list of those who may propose changes cannot be read");
  if (found.length > MOST_SENDERS) throw new MlsError("limit", "too many may propose changes");
  if (!found.every((each) => isUser(each.credential))) throw invalid("a credential is not that of a user");
}

const FROM_OUTSIDE = new Set<Proposal["proposalType"]>(["add", "remove", "group_context_extensions"]);

/** What somebody who is no member may propose (12.1.8). */
export function checkFromOutside(proposal: Proposal): void {
  if (!FROM_OUTSIDE.has(proposal.proposalType)) throw invalid("an external sender sent what only members may");
}

const TAKEN = new Set<Proposal["proposalType"]>(["add", "update", "remove", "external_init", "group_context_extensions"]);

/** No client of the protocol has pre-shared keys, or goes on in another group. */
export function checkKind(proposal: Proposal): void {
  if (!TAKEN.has(proposal.proposalType))
    throw new MlsError("unwanted", `proposals of type ${proposal.proposalType} have no use here`);
}

/** A proposal by itself. `tree`: before it. */
export function checkProposal({ proposal, senderLeafIndex }: ProposalWithSender, tree: RatchetTree): void {
  checkKind(proposal);
  if (typeof proposal.proposalType !== "string") return;
  if (proposal.proposalType === "add") checkKeyPackage(proposal.add.keyPackage);
  if (proposal.proposalType === "group_context_extensions")
    checkContext(proposal.groupContextExtensions.extensions, tree);
  if (proposal.proposalType === "update") {
    const former = senderLeafIndex === undefined ? undefined : tree[2 * senderLeafIndex];
    if (former?.nodeType !== "leaf" || proposal.update.leafNode.leafNodeSource !== "update")
      throw invalid("an update is of nobody");
    checkLeaf(proposal.update.leafNode);
    checkSuccessor(former.leaf, proposal.update.leafNode);
  }
}

/** A leaf that takes the place of another one. */
export function checkSuccessor(former: LeafNode, leaf: LeafNode): void {
  if (!equal(identityOf(former), identityOf(leaf))) throw invalid("a member takes another identity");
  if (equal(former.hpkePublicKey, leaf.hpkePublicKey)) throw invalid("a leaf is renewed with its old key");
}

/** Bounds what a commit costs, before any of it is looked at. */
export function checkCount(proposals: readonly ProposalWithSender[], tree: RatchetTree): void {
  const added = proposals.filter(({ proposal }) => proposal.proposalType === "add").length;
  const removed = proposals.filter(({ proposal }) => proposal.proposalType === "remove").length;
  const isTooMuch = leavesOf(tree).length - removed + added > MOST_LEAVES || proposals.length > 2 * MOST_LEAVES;
  if (isTooMuch) throw new MlsError("limit", `a group has more than ${MOST_LEAVES} places`);
}

/** Which proposals are together in a commit. `isExternal`: its sender comes in by it. */
export function checkList(proposals: readonly ProposalWithSender[], isExternal: boolean, committer: number): void {
  const count = (type: string): number => proposals.filter((each) => each.proposal.proposalType === type).length;
  if (isExternal) {
    if (count("external_init") !== 1 || count("remove") > 1) throw invalid("a new member's commit has a wrong beginning");
    if (count("external_init") + count("remove") !== proposals.length)
      throw invalid("a new member commits something that only members may");
    return;
  }
  if (count("external_init") > 0) throw invalid("a commit of a member is begun like that of a new one");
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

/** A commit without new keys only adds members (12.4). */
export function checkPathless(proposals: readonly ProposalWithSender[]): void {
  if (proposals.length === 0 || proposals.some((each) => NEEDS_PATH.has(each.proposal.proposalType)))
    throw invalid("a commit comes without the new keys that it needs");
}

/**
 * The form of a path, and that its keys are new (7.6, 12.4.2). `tree`: with the proposals applied and the committer's leaf,
 * and without the path. `added`: nodes of who comes in by the same commit. `former`: keys of the tree without a new leaf.
 */
export function checkPath(tree: RatchetTree, committer: number, path: UpdatePath, added: ReadonlySet<number>, former: RatchetTree): void {
  const needed = filteredDirectPathAndCopathResolution(toLeafIndex(committer), tree);
  if (needed.length !== path.nodes.length) throw invalid("a path has another number of nodes than the tree");
  path.nodes.forEach(({ encryptedPathSecret, hpkePublicKey }, at) => {
    if (encryptedPathSecret.length !== needed[at]!.resolution.filter((each) => !added.has(each)).length)
      throw invalid("a path is not encrypted to exactly those who need it");
    if (!isGoodKemKey(hpkePublicKey)) throw invalid("a node has a key that gives no secret");
  });
  const keys = [path.leafNode.hpkePublicKey, ...path.nodes.map((each) => each.hpkePublicKey)];
  const known = former.flatMap((node) => (node ? [getHpkePublicKey(node)] : []));
  differ(keys, "a path has one key twice");
  const all = new Set(known.map(hex));
  if (keys.some((each) => all.has(hex(each)))) throw invalid("a path has a key that is in the tree already");
}

/** Epochs before this one whose late messages can be read. */
export const MOST_PAST = 3;

export const CONFIG: ClientConfig = {
  keyRetentionConfig: { retainKeysForGenerations: 1_024, retainKeysForEpochs: MOST_PAST, maximumForwardRatchetSteps: 1_024 },
  lifetimeConfig: { maximumTotalLifetime: LONGEST_LIFETIME, validateLifetimeOnReceive: false },
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
