/** Joins a group by a Welcome or by an external commit. */

import { joinGroup } from "ts-mls/clientState.js";
import { joinGroupExternal } from "ts-mls/createCommit.js";
import { makeKeyPackageRef } from "ts-mls/keyPackage.js";
import { accumulatePskSecret, emptyPskIndex } from "ts-mls/pskIndex.js";
import { decryptGroupInfo, decryptGroupSecrets } from "ts-mls/welcome.js";
import { equal } from "../bytes";
import { checkPrivateKeys, checkTree, CONFIG, identityOf, leavesOf } from "./checks";
import { asMlsError, invalid, MlsError } from "./errors";
import { memberOf, MlsGroup, type Member } from "./group";
import type { OwnKeyPackage } from "./keys";
import { isGoodKemKey, KEM_BYTES, suite, SUITE_NAME } from "./suite";
import { decode, encode, treeOf } from "./wire";

const MAX_WELCOMED = 512;

/** The group of a Welcome, the key package that was used, and the member who signed it. */
export interface Welcomed {
  group: MlsGroup;
  used: OwnKeyPackage;
  by: Member;
}

/** Joins by a Welcome. `packages`: own key packages. Throws MlsError: `notForUs` if it matches no key package. */
export async function joinByWelcome(bytes: Uint8Array, packages: readonly OwnKeyPackage[]): Promise<Welcomed> {
  const message = decode(bytes);
  if (message.wireformat !== "mls_welcome") throw new MlsError("malformed", "it is not a Welcome");
  const { welcome } = message;
  if (welcome.cipherSuite !== SUITE_NAME) throw invalid("a Welcome uses another cipher suite");
  if (welcome.secrets.length > MAX_WELCOMED) throw new MlsError("limit", "a Welcome is for too many members");
  try {
    const cs = await suite();
    const used = await find(packages, welcome.secrets.map((each) => each.newMember));
    const reference = await makeKeyPackageRef(used.keyPackage, cs.hash);
    const initKey = await cs.hpke.importPrivateKey(used.privateKeys.initPrivateKey);
    const secrets = await decryptGroupSecrets(initKey, reference, welcome, cs.hpke);
    if (!secrets || secrets.psks.length > 0) throw invalid("a Welcome needs a pre-shared key");
    const [psk] = await accumulatePskSecret([], emptyPskIndex, cs, new Uint8Array(cs.kdf.size));
    const info = await decryptGroupInfo(welcome, secrets.joinerSecret, psk, cs);
    const tree = info && treeOf(info);
    if (!info || !tree) throw invalid("a Welcome has no tree");
    if (info.groupContext.epoch > BigInt(Number.MAX_SAFE_INTEGER)) throw new MlsError("limit", "an epoch is too large");
    checkTree(tree, info.groupContext);
    const signer = tree[2 * info.signer];
    if (signer?.nodeType !== "leaf") throw invalid("a Welcome's signer is not in the group");
    const state = await joinGroup(welcome, used.keyPackage, used.privateKeys, emptyPskIndex, cs, undefined, undefined, CONFIG);
    checkPrivateKeys(state);
    if (state.privatePath.leafIndex === info.signer) throw invalid("a Welcome is signed by its recipient");
    return { group: new MlsGroup(state), used, by: memberOf(info.signer, signer.leaf) };
  } catch (error) {
    throw asMlsError(error);
  }
}

async function find(packages: readonly OwnKeyPackage[], references: readonly Uint8Array[]): Promise<OwnKeyPackage> {
  const cs = await suite();
  for (const each of packages) {
    const reference = await makeKeyPackageRef(each.keyPackage, cs.hash);
    if (references.some((other) => equal(other, reference))) return each;
  }
  throw new MlsError("notForUs", "a Welcome is for none of this client's key packages");
}

/**
 * Creates an external commit, which also removes an old leaf of this client. Returns the message, and the group's
 * state after it, valid only if the server accepts the commit. Throws MlsError.
 */
export async function joinExternal(bytes: Uint8Array, own: OwnKeyPackage): Promise<{ group: MlsGroup; message: Uint8Array }> {
  const message = decode(bytes);
  if (message.wireformat !== "mls_group_info") throw new MlsError("malformed", "it is not a group info");
  const info = message.groupInfo;
  try {
    const tree = treeOf(info);
    const key = info.extensions.find((each) => each.extensionType === "external_pub")?.extensionData;
    if (!tree || !key) throw invalid("this group can be joined only by an invite");
    if (key[0] !== KEM_BYTES || !isGoodKemKey(key.subarray(1))) throw invalid("a group info has a key that yields no secret");
    checkTree(tree, info.groupContext);
    const identity = identityOf(own.keyPackage.leafNode);
    // ts-mls would search forever for a leaf that does not exist.
    const hasOldLeaf = leavesOf(tree).some(([, leaf]) => equal(identityOf(leaf), identity));
    const { newState, publicMessage } = await joinGroupExternal(
      info,
      own.keyPackage,
      own.privateKeys,
      hasOldLeaf,
      await suite(),
      undefined,
      CONFIG,
    );
    const commit = encode({ version: "mls10", wireformat: "mls_public_message", publicMessage });
    return { group: new MlsGroup(newState), message: commit };
  } catch (error) {
    throw asMlsError(error);
  }
}
