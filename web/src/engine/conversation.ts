/** The open conversation: the window of messages that is shown, and their texts. */

import type * as api from "./api";
import type { Id } from "./api";
import type { Entry, History } from "./history";
import type { Server } from "./server/server";
import { preview, conversationView, inWindow, type ViewWindow, type Parts } from "./view";

/** Messages by which the window grows. */
const STEP = 100;
/** Messages in the window. */
const MAX_SHOWN = 600;

export class Conversation {
  private opened: ViewWindow | null = null;
  private readonly requestedNames = new Set<Id>();

  /** `names`: of former members, by user id; the conversation adds to it. */
  constructor(
    private readonly history: History,
    private readonly server: Server,
    private readonly userId: Id,
    private readonly names: Map<Id, string>,
    private readonly onChange: () => void,
  ) {}

  get groupId(): Id | null {
    return this.opened?.groupId ?? null;
  }

  /** Opens a conversation at the first unread message or at message `around`; null closes it. */
  open(groupId: Id | null, around?: number): void {
    if (groupId === null) {
      this.opened = null;
      return;
    }
    const all = this.history.shown(groupId);
    const group = this.history.group(groupId);
    const unread = all.find((each) => group.isUnread(each, this.userId));
    const at = around ?? unread?.number;
    const index = at === undefined ? all.length - 1 : all.findIndex((each) => each.number >= at);
    const last = at === undefined ? all.length : index + STEP;
    this.opened = {
      groupId,
      from: at === undefined && all.length <= STEP ? 0 : numberAt(all, (index < 0 ? all.length : index) - (at === undefined ? STEP : STEP / 2)),
      to: last >= all.length ? null : all[last]!.number,
      around: around ?? null,
      unreadFrom: unread?.number ?? null,
      texts: new Map(),
    };
  }

  /** Moves the window. */
  loadMore(towards: "earlier" | "later"): void {
    const { opened } = this;
    if (!opened) return;
    const all = this.history.shown(opened.groupId);
    if (towards === "earlier") {
      const first = all.findIndex((each) => each.number >= opened.from);
      opened.from = numberAt(all, (first < 0 ? all.length : first) - STEP);
      const last = all.findIndex((each) => each.number >= opened.from) + MAX_SHOWN - 1;
      if (last < all.length - 1) opened.to = all[last]!.number;
    } else if (opened.to !== null) {
      const to = opened.to;
      const last = all.findLastIndex((each) => each.number <= to) + STEP;
      opened.to = last >= all.length - 1 ? null : all[last]!.number;
      opened.from = Math.max(opened.from, numberAt(all, Math.min(last, all.length - 1) - MAX_SHOWN + 1));
    }
  }

  /** Back to the newest messages. */
  showNewest(): void {
    if (!this.opened) return;
    const all = this.history.shown(this.opened.groupId);
    [this.opened.to, this.opened.around] = [null, null];
    this.opened.from = numberAt(all, all.length - STEP);
  }

  /** Returns the view; null if no conversation is open. */
  async view(parts: Parts): Promise<api.Conversation | null> {
    const { opened } = this;
    if (!opened) return null;
    const all = this.history.shown(opened.groupId);
    let shown = inWindow(all, opened);
    if (shown.length > MAX_SHOWN && opened.to === null) {
      opened.from = shown.at(-MAX_SHOWN)!.number;
      shown = shown.slice(-MAX_SHOWN);
    }
    const missing = shown.filter((each) => each.isReadable && !opened.texts.has(each.number));
    const texts = await this.history.texts(opened.groupId, missing);
    missing.forEach((each, at) => opened.texts.set(each.number, preview(texts[at]!)));
    const shownNow = new Set(inWindow(this.history.shown(opened.groupId), opened).map((each) => each.number));
    for (const number of opened.texts.keys()) if (!shownNow.has(number)) opened.texts.delete(number);
    this.requestNames(parts, shown);
    return this.opened === opened ? conversationView(parts, opened) : null;
  }

  /** Returns the whole text of a message; null if it may not be shown or is unreadable. */
  async fullText(number: number): Promise<string | null> {
    const groupId = this.groupId;
    const entry = groupId !== null && this.history.shown(groupId).find((each) => each.number === number);
    return groupId !== null && entry ? (await this.history.texts(groupId, [entry]))[0]! : null;
  }

  /** Requests the names of former members from the server. */
  private requestNames(parts: Parts, shown: readonly Entry[]): void {
    const groupId = this.opened!.groupId;
    const members = new Set(parts.mirror.listed.get(groupId)?.members.map((each) => each.user_id));
    for (const userId of new Set(shown.map((each) => each.senderId))) {
      if (members.has(userId) || this.requestedNames.has(userId)) continue;
      this.requestedNames.add(userId);
      void this.server.userById(userId).then(
        (user) => {
          this.names.set(userId, user.username);
          this.onChange();
        },
        () => undefined,
      );
    }
  }
}

/** Returns the number of the message at an index; 0 before the first. */
const numberAt = (all: readonly Entry[], index: number): number => (index <= 0 ? 0 : (all[index]?.number ?? 0));
