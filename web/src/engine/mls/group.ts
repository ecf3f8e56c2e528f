/**
 * A member's state of a group. It is immutable: changes return a new one, so rejected messages leave no trace, and the old
 * state is there until the new one is stored.
 */

import {
  createGroup,
  decodeGroupState,
  encodeGroupState,
  type ClientState,
} from "ts-mls/clientState.js";
import { createGroupInfo } from "ts-mls/createCommit.js";
import { encode as encoded } from "ts-mls/codec/tlsEncoder.js";
import { decodeEpochReceiverData, epochReceiverDataEncoder, type EpochReceiverData } from "ts-mls/epochReceiverData.js";
import { protectApplicationData } from "ts-mls/messageProtection.js";
import { encodeRatchetTree } from "ts-mls/ratchetTree.js";
import type { LeafNode } from "ts-mls/leafNode.js";
import type { Id } from "../api";
import { concat, hex, idOf, random } from "../bytes";
import { CONFIG, identityOf, leavesOf, MAX_PAST_EPOCHS } from "./checks";
import { MlsError } from "./errors";
import type { OwnKeyPackage } from "./keys";
import { HASH_BYTES, KEM_BYTES, suite } from "./suite";
import { encode } from "./wire";

/** A member, by the leaf at `index`. */
export interface Member {
  index: number;
  userId: Id;
  signatureKey: Uint8Array;
}

/** The effect of a commit. `proposed`: those of `added` and `removed` that were proposed by another member. */
export interface CommitEffect {
  committer: Member;
  added: Member[];
  removed: Member[];
  updated: Member[];
  proposed: Member[];
  removedSelf: boolean;
}

/** An own commit that was not fetched yet. `hash`: the SHA-256 of the message. `state`: after the commit. */
export interface PendingCommit {
  hash: string;
  state: Uint8Array;
  effect: CommitEffect;
}

/** PendingCommit own commits per epoch. */
export const MAX_PENDING = 32;

export const memberOf = (index: number, leaf: LeafNode): Member => ({
  index,
  userId: idOf(identityOf(leaf)),
  signatureKey: leaf.signaturePublicKey,
});

/** `past`: past epochs, for late messages. `sound`: references of proposals that can be committed. */
export class MlsGroup {
  constructor(
    readonly state: ClientState,
    readonly past: ReadonlyMap<number, EpochReceiverData> = new Map(),
    readonly pending: readonly PendingCommit[] = [],
    readonly sound: ReadonlySet<string> = new Set(),
  ) {}

  /** Creates a group with this client as its only member. */
  static async create(own: OwnKeyPackage): Promise<MlsGroup> {
    const state = await createGroup(random(HASH_BYTES), own.keyPackage, own.privateKeys, [], await suite(), CONFIG);
    return new MlsGroup(state);
  }

  get groupId(): string {
    return hex(this.state.groupContext.groupId);
  }

  get epoch(): number {
    return Number(this.state.groupContext.epoch);
  }

  /** The confirmation tag of the commit that started this epoch, which identifies that commit. */
  get tag(): string {
    return hex(this.state.confirmationTag);
  }

  get ownIndex(): number {
    return this.state.privatePath.leafIndex;
  }

  members(): Member[] {
    return leavesOf(this.state.ratchetTree).map(([index, leaf]) => memberOf(index, leaf));
  }

  find(userId: Id): Member | undefined {
    return this.members().find((each) => each.userId === userId);
  }

  /** Whether proposals are waiting, so that a commit must precede the next text. */
  get hasProposals(): boolean {
    return this.sound.size > 0;
  }

  with(changes: Partial<Pick<MlsGroup, "state" | "past" | "pending" | "sound">>): MlsGroup {
    const next = { state: this.state, past: this.past, pending: this.pending, sound: this.sound, ...changes };
    return new MlsGroup(next.state, next.past, next.pending, next.sound);
  }

  /** Returns the group in the next epoch, with the keys to read late messages of this one. */
  advance(state: ClientState): MlsGroup {
    const { keySchedule, secretTree, ratchetTree, groupContext } = this.state;
    const { senderDataSecret, resumptionPsk } = keySchedule;
    const epochs = new Map(this.past).set(this.epoch, { resumptionPsk, secretTree, ratchetTree, senderDataSecret, groupContext });
    const kept = [...epochs].sort(([one], [other]) => one - other).slice(-MAX_PAST_EPOCHS);
    return new MlsGroup({ ...state, historicalReceiverData: new Map() }, new Map(kept));
  }

  /** Returns the signed group info, with the tree and the key by which others can join. */
  async groupInfo(): Promise<Uint8Array> {
    const cs = await suite();
    const { state } = this;
    const { publicKey } = await cs.hpke.deriveKeyPair(state.keySchedule.externalSecret);
    const externalPub = concat(Uint8Array.of(KEM_BYTES), await cs.hpke.exportPublicKey(publicKey));
    const extensions = [
      { extensionType: "ratchet_tree" as const, extensionData: encodeRatchetTree(state.ratchetTree) },
      { extensionType: "external_pub" as const, extensionData: externalPub },
    ];
    const groupInfo = await createGroupInfo(state.groupContext, state.confirmationTag, state, extensions, cs);
    return encode({ version: "mls10", wireformat: "mls_group_info", groupInfo });
  }

  /** Encrypts data. The new state has to be stored before the message is sent. */
  async encrypt(data: Uint8Array, authenticatedData: Uint8Array = new Uint8Array()): Promise<{ group: MlsGroup; message: Uint8Array }> {
    const { state } = this;
    const content = lengthBytes(data.length) + data.length + lengthBytes(SIGNATURE_BYTES) + SIGNATURE_BYTES;
    const { newSecretTree, privateMessage } = await protectApplicationData(
      state.signaturePrivateKey,
      state.keySchedule.senderDataSecret,
      data,
      authenticatedData,
      state.groupContext,
      state.secretTree,
      state.privatePath.leafIndex,
      { kind: "alwaysPad", paddingLength: paddingFor(content) },
      await suite(),
    );
    const message = encode({ version: "mls10", wireformat: "mls_private_message", privateMessage });
    return { group: this.with({ state: { ...state, secretTree: newSecretTree } }), message };
  }

  /** Returns the serialized group, in plaintext. */
  store(): StoredGroup {
    return {
      state: encodeGroupState(this.state),
      past: [...this.past].map(([epoch, data]) => [epoch, encoded(epochReceiverDataEncoder)(data)]),
      pending: [...this.pending],
      sound: [...this.sound],
    };
  }

  /** Throws MlsError for invalid data. */
  static load(stored: StoredGroup): MlsGroup {
    try {
      return new MlsGroup(
        loadState(stored.state),
        new Map(stored.past.map(([epoch, data]) => [epoch, decodeEpochReceiverData(data, 0)![0]])),
        stored.pending,
        new Set(stored.sound),
      );
    } catch {
      throw new MlsError("malformed", "the stored keys of a group cannot be read");
    }
  }
}

export interface StoredGroup {
  state: Uint8Array;
  past: [number, Uint8Array][];
  pending: PendingCommit[];
  sound: string[];
}

export const storeState = (state: ClientState): Uint8Array =>
  encodeGroupState({ ...state, historicalReceiverData: new Map() });

export const loadState = (stored: Uint8Array): ClientState => ({
  ...decodeGroupState(stored, 0)![0],
  clientConfig: CONFIG,
});

const SIGNATURE_BYTES = 114;
const MIN_PADDED = 256;

const lengthBytes = (length: number): number => (length < 64 ? 1 : length < 16_384 ? 2 : 4);

/** Returns the padding of a length: to steps of an eighth of the next power of two, at least 32, as other clients do. */
export function paddingFor(length: number): number {
  const bits = (value: number): number => (value === 0 ? 0 : Math.floor(Math.log2(value)) + 1);
  const step = 2 ** (bits(Math.max(MIN_PADDED, 2 ** bits(length))) - 4);
  return Math.floor(length / step) * step + step - length;
}
