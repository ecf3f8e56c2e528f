/** A change of a group's encryption: all of it is stored in one transaction, or nothing is. */

import type { Id, Key } from "../api";
import type { MlsGroup, Member } from "../mls/group";
import { Batch } from "../store/vault";
import { Held } from "./held";
import { fingerprintOf, meet, type Known } from "./people";

/** What people should know of a group's encryption. */
export type News =
  | { kind: "keyChanged"; groupId: Id; userId: Id; key: Key }
  | { kind: "changed"; groupId: Id }
  | { kind: "notice"; groupId: Id; what: NoticeKind; sentence: string; userId?: Id; otherId?: Id };

/** `refused`, `stranger`, `replaced`, `lost`, `restored`: a danger or a fault. The others are information. */
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

/** Of a group's last 4,096 numbers it is remembered whose texts were read. */
const HEARD_WITHIN = 4_096;
const HEARD_CHUNK = 256;

/** Whose texts were read, by chunks of numbers. */
export type Heard = ReadonlyMap<number, readonly (readonly [number, Id])[]>;

export class Draft {
  readonly batch = new Batch();
  readonly news: News[] = [];
  readonly held: Held;
  readonly known: Known;
  heard: Map<number, readonly (readonly [number, Id])[]>;

  constructor(
    held: Held,
    public group: MlsGroup | null,
    heard: Heard,
    known: Known,
    private readonly ownId: Id,
  ) {
    this.held = held.copy();
    this.heard = new Map(heard);
    this.known = { ...known };
  }

  get groupId(): Id {
    return this.held.groupId;
  }

  /** Notes that a text of somebody else's was read, which came first under that number. */
  hear(number: number, senderId: Id): void {
    if (this.hasHeard(number, senderId)) return;
    const chunk = Math.floor(number / HEARD_CHUNK);
    this.heard.set(chunk, [...(this.heard.get(chunk) ?? []), [number, senderId]]);
    this.batch.put(["heard", this.groupId, chunk], this.heard.get(chunk));
    for (const each of [...this.heard.keys()]) {
      if (each >= Math.floor((number - HEARD_WITHIN) / HEARD_CHUNK)) continue;
      this.heard.delete(each);
      this.batch.delete(["heard", this.groupId, each]);
    }
  }

  hasHeard(number: number, senderId: Id): boolean {
    const chunk = this.heard.get(Math.floor(number / HEARD_CHUNK)) ?? [];
    return chunk.some(([each, by]) => each === number && by === senderId);
  }

  /** Whether somebody's key was met for the first time, or is another one. */
  get haveKeysChanged(): boolean {
    return this.batch.puts.has(JSON.stringify(["people"]));
  }

  /** Remembers a member's key; says so if it is another one than before. */
  async meet(member: Member): Promise<void> {
    if (member.userId === this.ownId) return;
    const seen = await fingerprintOf(member);
    if (this.known[member.userId]?.fingerprint === seen) return;
    const key = meet(this.known, member.userId, seen);
    this.batch.put(["people"], this.known);
    if (key) this.news.push({ kind: "keyChanged", groupId: this.groupId, userId: member.userId, key });
  }

  notice(what: NoticeKind, sentence: string, userId?: Id, otherId?: Id): void {
    this.news.push({ kind: "notice", groupId: this.groupId, what, sentence, userId, otherId });
  }
}
