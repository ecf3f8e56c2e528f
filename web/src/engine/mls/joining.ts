/** Coming into a group: by a Welcome, and by an external commit. */

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

const MOST_WELCOMED = 512;

/** A group that a Welcome leads to, which key package was used, and who has signed it. */
export interface Welcomed {
  group: MlsGroup;
  used: OwnKeyPackage;
  by: Member;
}

/** Joins by a Welcome. `packages`: own ones. Throws MlsError; `notForUs`: it is for none of them. */
export async function joinByWelcome(bytes: Uint8Array, packages: readonly OwnKeyPackage[]): Promise<Welcomed> {
  const message = decode(bytes);
  if (message.wireformat !== "mls_welcome") throw new MlsError("malformed", "it is no Welcome");
  const { welcome } = message;
  if (welcome.cipherSuite !== SUITE_NAME) throw invalid("a Welcome is of another cipher suite");
  if (welcome.secrets.length > MOST_WELCOMED) throw new MlsError("limit", "a Welcome is for too many");
  try {
    const cs = await suite();
    const used = await find(packages, welcome.secrets.map((each) => each.newMember));
    const reference = await makeKeyPackageRef(used.keyPackage, cs.hash);
    const initKey = await cs.hpke.importPrivateKey(used.privateKeys.initPrivateKey);
    const secrets = await decryptGroupSecrets(initKey, reference, welcome, cs.hpke);
    if (!secrets || secrets.psks.length > 0) throw invalid("a Welcome needs a key that is not there");
    const [psk] = await accumulatePskSecret([], emptyPskIndex, cs, new Uint8Array(cs.kdf.size));
    const info = await decryptGroupInfo(welcome, secrets.joinerSecret, psk, cs);
    const tree = info && treeOf(info);
    if (!info || !tree) throw invalid("a Welcome has no tree");
    if (info.groupContext.epoch > BigInt(Number.MAX_SAFE_INTEGER)) throw new MlsError("limit", "an epoch is too late");
    checkTree(tree, info.groupContext);
    const signer = tree[2 * info.signer];
    if (signer?.nodeType !== "leaf") throw invalid("a Welcome is signed by nobody");
    const state = await joinGroup(welcome, used.keyPackage, used.privateKeys, emptyPskIndex, cs, undefined, undefined, CONFIG);
    checkPrivateKeys(state);
    if (state.privatePath.leafIndex === info.signer) throw invalid("a Welcome is signed by its reader");
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
 * Makes a commit by which the client comes in by itself: the group as it is if the commit counts, and the message. An own
 * old leaf is removed. Throws MlsError.
 */
export async function joinExternal(bytes: Uint8Array, own: OwnKeyPackage): Promise<{ group: MlsGroup; message: Uint8Array }> {
  const message = decode(bytes);
  if (message.wireformat !== "mls_group_info") throw new MlsError("malformed", "it is no group info");
  const info = message.groupInfo;
  try {
    const tree = treeOf(info);
    const key = info.extensions.find((each) => each.extensionType === "external_pub")?.extensionData;
    if (!tree || !key) throw invalid("nobody may join this group without being invited");
    if (key[0] !== KEM_BYTES || !isGoodKemKey(key.subarray(1))) throw invalid("a group info has a key that gives no secret");
    checkTree(tree, info.groupContext);
    const identity = identityOf(own.keyPackage.leafNode);
    // Without an old leaf, ts-mls would look for it for ever.
    const isBack = leavesOf(tree).some(([, leaf]) => equal(identityOf(leaf), identity));
    const { newState, publicMessage } = await joinGroupExternal(
      info,
      own.keyPackage,
      own.privateKeys,
      isBack,
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
