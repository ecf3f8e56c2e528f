/** Encodes and decodes MLS messages, and reads their unencrypted headers. */

import type { GroupInfo } from "ts-mls/groupInfo.js";
import { ratchetTreeFromExtension } from "ts-mls/groupInfo.js";
import { decodeMlsMessage, encodeMlsMessage, type MLSMessage } from "ts-mls/message.js";
import type { RatchetTree } from "ts-mls/ratchetTree.js";
import { equal, hex, idOf } from "../bytes";
import type { Id } from "../api";
import { checkExtensions, ID_BYTES, identityOf, isUser, leavesOf, MAX_LEAVES } from "./checks";
import { asMlsError, MlsError } from "./errors";

/** The server's limit for a body. */
const MAX_BYTES = 1_048_576;
/** Limits the processor time for messages other than texts. */
const MAX_HANDSHAKE_BYTES = 320_000;
/** The first four bytes of a message: version and type. */
const PRIVATE = 0x0001_0002;
const INFO = 0x0001_0004;
/** Smaller lengths are encoded in one byte. */
const SHORT_LENGTHS = 64;

const prefix = (bytes: Uint8Array): number =>
  bytes.length < 4 ? 0 : new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);

/** Decodes a message in canonical form, without trailing bytes. Throws MlsError. */
export function decode(bytes: Uint8Array): MLSMessage {
  if (bytes.length > (prefix(bytes) === PRIVATE ? MAX_BYTES : MAX_HANDSHAKE_BYTES)) throw new MlsError("limit", "a message is too large");
  let message: MLSMessage | undefined;
  try {
    message = decodeMlsMessage(bytes, 0)?.[0];
    if (message && !equal(encodeMlsMessage(message), bytes)) message = undefined;
  } catch (error) {
    throw new MlsError("malformed", `not an MLS message: ${asMlsError(error).message}`);
  }
  if (message === undefined) throw new MlsError("malformed", "not an MLS message");
  const isText = message.wireformat === "mls_private_message" && message.privateMessage.contentType === "application";
  if (!isText && bytes.length > MAX_HANDSHAKE_BYTES) throw new MlsError("limit", "a message is too large");
  const epoch = epochOf(message);
  if (epoch > BigInt(Number.MAX_SAFE_INTEGER)) throw new MlsError("limit", "an epoch is too large");
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
 * The unauthenticated header of a message. `tag`: the confirmation tag of an unencrypted commit. `isExternal`: an external
 * commit, by which its sender joins. `mayChangeMembers`: it may add or remove other members.
 */
export interface MessageHeader {
  groupId: string;
  epoch: number;
  isCommit: boolean;
  isApplication: boolean;
  tag: string;
  isExternal: boolean;
  mayChangeMembers: boolean;
}

/** Returns the header of a message; null if it is not an MLS message. */
export function readHeader(bytes: Uint8Array): MessageHeader | null {
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

/** The header of a group info, with its signer by the tree. The signature is not verified. */
export interface GroupInfoHeader {
  groupId: string;
  epoch: number;
  tag: string;
  signer: { userId: Id; signatureKey: Uint8Array } | null;
  /** The signature keys of the members. */
  keys: ReadonlyMap<Id, Uint8Array>;
}

/** Returns the epoch of a group info, even if the rest cannot be read; null if it is not a group info. */
export function epochOfInfo(bytes: Uint8Array): number | null {
  const length = bytes[8] ?? SHORT_LENGTHS; // of the group id, after versions, type and suite
  if (prefix(bytes) !== INFO || length >= SHORT_LENGTHS || bytes.length < 17 + length) return null;
  return Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(9 + length));
}

/** Reads a group info; null if it is invalid. */
export function readInfo(bytes: Uint8Array): GroupInfoHeader | null {
  try {
    const message = decode(bytes);
    if (message.wireformat !== "mls_group_info") return null;
    const info = message.groupInfo;
    const tree = treeOf(info);
    const keys = new Map<Id, Uint8Array>();
    let signer: GroupInfoHeader["signer"] = null;
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

/** Returns the tree in a group info; undefined if there is none. Throws MlsError if it is too large. */
export function treeOf(info: GroupInfo): RatchetTree | undefined {
  checkExtensions(info.extensions, "groupInfo");
  const tree = ratchetTreeFromExtension(info);
  if (tree && tree.length > 2 * MAX_LEAVES) throw new MlsError("limit", `a group has more than ${MAX_LEAVES} places`);
  return tree;
}
