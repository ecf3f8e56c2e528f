/** A change of a group's encryption, which is stored in one transaction. */

import type { Id, Key } from "../api";
import type { MlsGroup, Member } from "../mls/group";
import { Batch } from "../store/vault";
import { GroupRecord } from "./group-record";
import { fingerprintOf, recordKey, type KnownKeys } from "./people";

/** Events of a group's encryption to show. */
export type News =
  | { kind: "keyChanged"; groupId: Id; userId: Id; key: Key }
  | { kind: "changed"; groupId: Id }
  | { kind: "notice"; groupId: Id; what: NoticeKind; sentence: string; userId?: Id; otherId?: Id };

/** `refused`, `stranger`, `replaced`, `lost` and `restored` are warnings, the others information. */
export type NoticeKind =
  | "joined"
  | "returned"
  | "refused"
  | "stranger"
  | "mended"
  | "replaced"
  | "restored"
  | "lost"
  | "removed"
  | "welcomed";

/** Among a group's last 4,096 numbers, the messages that were read are recorded. */
const READ_NUMBERS_KEPT = 4_096;
const CHUNK = 256;

/** Numbers and senders of messages that were read, by chunk of numbers. */
export type ReadMessages = ReadonlyMap<number, readonly (readonly [number, Id])[]>;

export class GroupTransaction {
  readonly batch = new Batch();
  readonly news: News[] = [];
  readonly record: GroupRecord;
  readonly known: KnownKeys;
  read: Map<number, readonly (readonly [number, Id])[]>;

  constructor(
    record: GroupRecord,
    public group: MlsGroup | null,
    read: ReadMessages,
    known: KnownKeys,
    private readonly ownId: Id,
  ) {
    this.record = record.copy();
    this.read = new Map(read);
    this.known = { ...known };
  }

  get groupId(): Id {
    return this.record.groupId;
  }

  /** Records that a message of another member was read. `number`: of its first transmission. */
  recordRead(number: number, senderId: Id): void {
    if (this.wasRead(number, senderId)) return;
    const chunk = Math.floor(number / CHUNK);
    this.read.set(chunk, [...(this.read.get(chunk) ?? []), [number, senderId]]);
    this.batch.put(["heard", this.groupId, chunk], this.read.get(chunk));
    for (const each of [...this.read.keys()]) {
      if (each >= Math.floor((number - READ_NUMBERS_KEPT) / CHUNK)) continue;
      this.read.delete(each);
      this.batch.delete(["heard", this.groupId, each]);
    }
  }

  wasRead(number: number, senderId: Id): boolean {
    const chunk = this.read.get(Math.floor(number / CHUNK)) ?? [];
    return chunk.some(([each, by]) => each === number && by === senderId);
  }

  /** Whether a key is new or has changed. */
  get haveKeysChanged(): boolean {
    return this.batch.puts.has(JSON.stringify(["people"]));
  }

  /** Records a member's key, and adds news if it has changed. */
  async recordKey(member: Member): Promise<void> {
    if (member.userId === this.ownId) return;
    const seen = await fingerprintOf(member);
    if (this.known[member.userId]?.fingerprint === seen) return;
    const key = recordKey(this.known, member.userId, seen);
    this.batch.put(["people"], this.known);
    if (key) this.news.push({ kind: "keyChanged", groupId: this.groupId, userId: member.userId, key });
  }

  notice(what: NoticeKind, sentence: string, userId?: Id, otherId?: Id): void {
    this.news.push({ kind: "notice", groupId: this.groupId, what, sentence, userId, otherId });
  }
}
