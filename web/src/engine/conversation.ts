/** The open conversation: which of its messages are shown, and their texts. */

import type * as api from "./api";
import type { Id } from "./api";
import type { Entry, History } from "./history";
import type { Server } from "./server/server";
import { beginningOf, conversationView, inWindow, type Opened, type Parts } from "./view";

/** So many messages are added at once. */
const STEP = 100;
/** So many are shown at most. */
const MOST_SHOWN = 600;

export class Conversation {
  private opened: Opened | null = null;
  private readonly asked = new Set<Id>();

  /** `names`: of people who are in no group any more; it is added to. */
  constructor(
    private readonly history: History,
    private readonly server: Server,
    private readonly userId: Id,
    private readonly names: Map<Id, string>,
    private readonly changed: () => void,
  ) {}

  get groupId(): Id | null {
    return this.opened?.groupId ?? null;
  }

  /** Opens a conversation, at the unread ones or around a number; null: none is open. */
  open(groupId: Id | null, around?: number): void {
    if (groupId === null) {
      this.opened = null;
      return;
    }
    const all = this.history.shown(groupId);
    const here = this.history.group(groupId);
    const unread = all.find((each) => here.isUnread(each, this.userId));
    const at = around ?? unread?.number;
    const place = at === undefined ? all.length - 1 : all.findIndex((each) => each.number >= at);
    const last = at === undefined ? all.length : place + STEP;
    this.opened = {
      groupId,
      from: at === undefined && all.length <= STEP ? 0 : numberAt(all, (place < 0 ? all.length : place) - (at === undefined ? STEP : STEP / 2)),
      to: last >= all.length ? null : all[last]!.number,
      around: around ?? null,
      unreadFrom: unread?.number ?? null,
      texts: new Map(),
    };
  }

  /** Moves the window. */
  more(towards: "earlier" | "later"): void {
    const { opened } = this;
    if (!opened) return;
    const all = this.history.shown(opened.groupId);
    if (towards === "earlier") {
      const first = all.findIndex((each) => each.number >= opened.from);
      opened.from = numberAt(all, (first < 0 ? all.length : first) - STEP);
      const last = all.findIndex((each) => each.number >= opened.from) + MOST_SHOWN - 1;
      if (last < all.length - 1) opened.to = all[last]!.number;
    } else if (opened.to !== null) {
      const to = opened.to;
      const last = all.findLastIndex((each) => each.number <= to) + STEP;
      opened.to = last >= all.length - 1 ? null : all[last]!.number;
      opened.from = Math.max(opened.from, numberAt(all, Math.min(last, all.length - 1) - MOST_SHOWN + 1));
    }
  }

  /** Back to the newest messages. */
  toEnd(): void {
    if (!this.opened) return;
    const all = this.history.shown(this.opened.groupId);
    [this.opened.to, this.opened.around] = [null, null];
    this.opened.from = numberAt(all, all.length - STEP);
  }

  /** What is shown; null: nothing is open. */
  async view(parts: Parts): Promise<api.Conversation | null> {
    const { opened } = this;
    if (!opened) return null;
    const all = this.history.shown(opened.groupId);
    let shown = inWindow(all, opened);
    if (shown.length > MOST_SHOWN && opened.to === null) {
      opened.from = shown.at(-MOST_SHOWN)!.number;
      shown = shown.slice(-MOST_SHOWN);
    }
    const missing = shown.filter((each) => each.isReadable && !opened.texts.has(each.number));
    const texts = await this.history.texts(opened.groupId, missing);
    missing.forEach((each, at) => opened.texts.set(each.number, beginningOf(texts[at]!)));
    const here = new Set(inWindow(this.history.shown(opened.groupId), opened).map((each) => each.number));
    for (const number of opened.texts.keys()) if (!here.has(number)) opened.texts.delete(number);
    this.askNames(parts, shown);
    return this.opened === opened ? conversationView(parts, opened) : null;
  }

  /** The whole text of a message that may be shown; null: there is none. */
  async whole(number: number): Promise<string | null> {
    const groupId = this.groupId;
    const entry = groupId !== null && this.history.shown(groupId).find((each) => each.number === number);
    return groupId !== null && entry ? (await this.history.texts(groupId, [entry]))[0]! : null;
  }

  /** Finds out how those are called who are in no group any more. */
  private askNames(parts: Parts, shown: readonly Entry[]): void {
    const groupId = this.opened!.groupId;
    const members = new Set(parts.mirror.listed.get(groupId)?.members.map((each) => each.user_id));
    for (const userId of new Set(shown.map((each) => each.senderId))) {
      if (members.has(userId) || this.asked.has(userId)) continue;
      this.asked.add(userId);
      void this.server.userById(userId).then(
        (user) => {
          this.names.set(userId, user.username);
          this.changed();
        },
        () => undefined,
      );
    }
  }
}

/** The number of a message at a place; 0 before the first. */
const numberAt = (all: readonly Entry[], place: number): number => (place <= 0 ? 0 : (all[place]?.number ?? 0));
