/** Messages as they go over the wire, and what they say of themselves in the clear. */

import type { GroupInfo } from "ts-mls/groupInfo.js";
import { ratchetTreeFromExtension } from "ts-mls/groupInfo.js";
import { decodeMlsMessage, encodeMlsMessage, type MLSMessage } from "ts-mls/message.js";
import type { RatchetTree } from "ts-mls/ratchetTree.js";
import { equal, hex, idOf } from "../bytes";
import type { Id } from "../api";
import { checkExtensions, ID_BYTES, identityOf, isUser, leavesOf, MOST_LEAVES } from "./checks";
import { asMlsError, MlsError } from "./errors";

/** A body of the server has at most so many bytes. */
const MOST_BYTES = 1_048_576;
/** What changes a group, or leads into it: its parts cost processor time. */
const MOST_HANDSHAKE_BYTES = 320_000;
/** How messages begin: with the version, and what they are. */
const PRIVATE = 0x0001_0002;
const INFO = 0x0001_0004;
/** Lengths below this one have one byte. */
const MOST_SHORT = 64;

const beginning = (bytes: Uint8Array): number =>
  bytes.length < 4 ? 0 : new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);

/** Reads a message that fills the bytes, written as it would be written here. Throws MlsError. */
export function decode(bytes: Uint8Array): MLSMessage {
  if (bytes.length > (beginning(bytes) === PRIVATE ? MOST_BYTES : MOST_HANDSHAKE_BYTES)) throw new MlsError("limit", "a message is too large");
  let message: MLSMessage | undefined;
  try {
    message = decodeMlsMessage(bytes, 0)?.[0];
    if (message && !equal(encodeMlsMessage(message), bytes)) message = undefined;
  } catch (error) {
    throw new MlsError("malformed", `it is not a message: ${asMlsError(error).message}`);
  }
  if (message === undefined) throw new MlsError("malformed", "it is not a message");
  const isText = message.wireformat === "mls_private_message" && message.privateMessage.contentType === "application";
  if (!isText && bytes.length > MOST_HANDSHAKE_BYTES) throw new MlsError("limit", "a message is too large");
  const epoch = epochOf(message);
  if (epoch > BigInt(Number.MAX_SAFE_INTEGER)) throw new MlsError("limit", "an epoch is too late");
  return message;
}

function epochOf(message: MLSMessage): bigint {
  if (message.wireformat === "mls_private_message") return message.privateMessage.epoch;
  if (message.wireformat === "mls_public_message") return message.publicMessage.content.epoch;
  if (message.wireformat === "mls_group_info") return message.groupInfo.groupContext.epoch;
  return 0n;
}

export const encode = (message: MLSMessage): Uint8Array => encodeMlsMessage(message);

/**
 * What a message says of itself; it proves nothing. `tag`: the confirmation tag of a commit, if it is not encrypted.
 * `isExternal`: by this commit its sender comes in. `mayChangeMembers`: as far as can be seen, others may be added or
 * removed by it.
 */
export interface Header {
  groupId: string;
  epoch: number;
  isCommit: boolean;
  isApplication: boolean;
  tag: string;
  isExternal: boolean;
  mayChangeMembers: boolean;
}

/** The header of a message; null if it is none of MLS. */
export function readHeader(bytes: Uint8Array): Header | null {
  let message: MLSMessage;
  try {
    message = decode(bytes);
  } catch {
    return null;
  }
  if (message.wireformat === "mls_private_message") {
    const { groupId, epoch, contentType } = message.privateMessage;
    const isApplication = contentType === "application";
    return {
      groupId: hex(groupId),
      epoch: Number(epoch),
      isCommit: contentType === "commit",
      isApplication,
      tag: "",
      isExternal: false,
      mayChangeMembers: !isApplication,
    };
  }
  if (message.wireformat !== "mls_public_message") return null;
  const { content, auth } = message.publicMessage;
  const isExternal = content.sender.senderType === "new_member_commit";
  const isCommit = content.contentType === "commit";
  return {
    groupId: hex(content.groupId),
    epoch: Number(content.epoch),
    isCommit,
    isApplication: false,
    tag: auth.contentType === "commit" ? hex(auth.confirmationTag) : "",
    isExternal: isCommit && isExternal,
    mayChangeMembers: content.contentType !== "commit" || (content.commit.proposals.length > 0 && !isExternal),
  };
}

/** A group info: what it says, and who has signed it as its tree has it. The signature is not checked. */
export interface Info {
  groupId: string;
  epoch: number;
  tag: string;
  signer: { userId: Id; signatureKey: Uint8Array } | null;
  /** The signature keys that it has for members. */
  keys: ReadonlyMap<Id, Uint8Array>;
}

/** Of which epoch bytes say that they are a group info, also if it cannot be read here; null: they are none. */
export function epochOfInfo(bytes: Uint8Array): number | null {
  const length = bytes[8] ?? MOST_SHORT; // of the group's id, after versions, kind and suite
  if (beginning(bytes) !== INFO || length >= MOST_SHORT || bytes.length < 17 + length) return null;
  return Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(9 + length));
}

/** Reads a group info; null if it is none of MLS. */
export function readInfo(bytes: Uint8Array): Info | null {
  try {
    const message = decode(bytes);
    if (message.wireformat !== "mls_group_info") return null;
    const info = message.groupInfo;
    const tree = treeOf(info);
    const keys = new Map<Id, Uint8Array>();
    let signer: Info["signer"] = null;
    for (const [index, leaf] of tree ? leavesOf(tree) : []) {
      if (!isUser(leaf.credential)) continue;
      const userId = idOf(identityOf(leaf).slice(0, ID_BYTES));
      keys.set(userId, leaf.signaturePublicKey);
      if (index === info.signer) signer = { userId, signatureKey: leaf.signaturePublicKey };
    }
    const { groupId, epoch } = info.groupContext;
    return { groupId: hex(groupId), epoch: Number(epoch), tag: hex(info.confirmationTag), signer, keys };
  } catch {
    return null;
  }
}

/** The tree that a group info carries; undefined if it has none. Throws MlsError for one that is too large. */
export function treeOf(info: GroupInfo): RatchetTree | undefined {
  checkExtensions(info.extensions, "groupInfo");
  const tree = ratchetTreeFromExtension(info);
  if (tree && tree.length > 2 * MOST_LEAVES) throw new MlsError("limit", `a group has more than ${MOST_LEAVES} places`);
  return tree;
}
