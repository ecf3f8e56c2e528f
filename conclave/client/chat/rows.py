"""Lays out the contents of a group as rows of text."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from textual.content import Content
from textual.style import Style

from conclave.client.chat import formatting, links, quotes
from conclave.client.chat.rooms import Notice, PendingMessage
from conclave.client.chat.trust import KEY_CHANGED
from conclave.client.events import Message
from conclave.retention.durations import duration_words

Item = Message | Notice | PendingMessage

GROUPING_SECONDS = 300
"""Messages of one sender within 5 minutes share a name line."""

INDENT = 2

CONTINUED = "> "
"""In plain mode, the prefix of each row of a message or notice but the first.

Otherwise a text could imitate the first row of another user's message.
"""

FOUND = Content("▸ ")
"""Replaces the indent of the search result that was opened."""

COUNTDOWN_WIDTH = 11
"""The column of the time left: a space, up to 8 cells, a space, and the circle."""

MIN_WIDTH = 20
"""Narrower screens are treated as 20 columns wide."""

NAME_COLOURS = 8

TIME_WIDTH = 6
"""The column of the time beside a name: a space, and 5 cells."""

_DAY_SECONDS = 86_400 + 3600
"""The longest day, when clocks are set back."""


class RowKey(NamedTuple):
    """Identifies what a row belongs to, to find it again after rows above it are gone."""

    kind: str
    number: int


@dataclass(frozen=True)
class TimelineRow:
    """A row. ``style``: its component class. ``message``: set in a message's first row. ``key``: what it belongs to.

    ``also``: the numbers of other messages that the row represents.
    """

    text: Content
    style: str
    key: RowKey
    number: int = 0
    message: Message | None = None
    right: str = ""
    indent: int = 0
    also: tuple[int, ...] = ()

    def is_of(self, message: Message) -> bool:
        """Tell whether a row represents a message."""
        return self.key == key_of(message) or message.sequence_num in self.also


@dataclass(frozen=True)
class RowContext:
    """What rows depend on, besides the items. ``name``: returns a user's name.

    ``read_before``: the line "new" comes after this number; None: there is no such line. ``has_later``: the group has
    later messages. ``mentions_user``: whether a text mentions the user. ``found``: the number of the search result that
    was opened.
    """

    width: int
    name: Callable[[UUID], str]
    user_id: UUID
    now: int
    read_before: int | None = None
    is_plain: bool = False
    is_online: bool = True
    has_later: bool = False
    mentions_user: Callable[[str], bool] = lambda _: False
    found: int | None = None


def style_of(user_id: UUID, own_id: UUID) -> str:
    """Return the component class of a user's name; it determines the colour."""
    return "own" if user_id == own_id else f"name-{zlib.crc32(user_id.bytes) % NAME_COLOURS}"


class WrapCache:
    """Caches how the shown texts are wrapped."""

    def __init__(self) -> None:
        self._previous: dict[tuple[str, int, str, str], list[Content]] = {}
        self._current: dict[tuple[str, int, str, str], list[Content]] = {}

    def end(self) -> None:
        """Drop the texts that were not requested since the last call."""
        self._previous, self._current = self._current, {}

    def lines(self, text: str, width: int, before: str = "", after: str = "") -> list[Content]:
        """Return the lines of a message in a width, with text before and after it."""
        key = text, width, before, after
        if key not in self._current:
            self._current[key] = self._previous.get(key) or wrap_message(text, width, before, after)
        return self._current[key]


def wrap_message(text: str, width: int, before: str = "", after: str = "") -> list[Content]:
    """Wrap a message with its links, and its quotes dimmed."""
    content = Content(formatting.display_text(text))
    for start, end in quotes.quote_spans(content.plain):
        content = content.stylize(Style(dim=True), start, end)
    for start, end, address in links.find_links(content.plain):
        content = content.stylize(Style(link=address, underline=True), start, end)
    return Content.assemble(before, content, after).wrap(width)


def lay_out(items: Iterable[Item], context: RowContext, cache: WrapCache | None = None) -> list[TimelineRow]:
    """Return the rows of a group, from the oldest. ``cache``: from the previous call."""
    cache = cache or WrapCache()
    made = list(_rows(list(items), context, cache))
    cache.end()
    return made


def is_gone(item: Item, now: int) -> bool:
    """Tell whether an item has expired."""
    return isinstance(item, Message) and item.is_gone(now)


def key_of(item: Item) -> RowKey:
    """Return the key of an item's rows."""
    match item:
        case Message():
            return RowKey("message", item.sequence_num)
        case Notice():
            return RowKey("notice", hash((item.after, item.at, item.text)))
        case PendingMessage():
            return RowKey("pending", item.send_id.int)


def countdown(message: Message, now: int) -> tuple[str, str, str]:
    """Return the time left as text, its symbol, and its style; all "" if the message stays."""
    timed = bool(message.self_destruct_seconds)
    if message.gone_at is None:
        return (f"{formatting.time_left(message.self_destruct_seconds)}", "✶", "countdown") if timed else ("", "", "")
    seconds = message.gone_at - now
    whole = min(message.gone_at - message.created_at, message.self_destruct_seconds or message.gone_at)
    style = "countdown-ends" if seconds <= 10 else "countdown-short" if 4 * seconds <= whole else "countdown"
    return formatting.time_left(seconds), "✶" if timed else formatting.countdown_circle(seconds, whole), style


def _rows(items: list[Item], context: RowContext, cache: WrapCache) -> Iterator[TimelineRow]:
    countdown_width = COUNTDOWN_WIDTH if any(_has_countdown(each) for each in items) and not context.is_plain else 0
    width = max(MIN_WIDTH, context.width)
    previous: Item | None = None
    has_new_divider = context.read_before is None
    for item, also in _merge_unreadable(items, context):
        key = key_of(item)
        at = _time_of(item, context.now)
        if previous is None or not _is_same_day(_time_of(previous, context.now), at):
            yield from _divider(formatting.day(at), "day", key, width, context)
            previous = None
        if not has_new_divider and _is_new(item, context):
            yield from _divider("new", "new", key, width, context)
            has_new_divider, previous = True, None
        if also:
            yield from _unreadable(key, (item, *also), width, context)
            previous = Notice(0, also[-1].created_at, "")  # the next message starts with a name
        else:
            yield from _item(item, previous, context, width, countdown_width, cache)
            previous = item


def _merge_unreadable(items: Iterable[Item], context: RowContext) -> Iterator[tuple[Item, list[Message]]]:
    """Yield items; several consecutive unreadable messages as the first one with the others."""
    first: Item | None = None
    others: list[Message] = []
    is_new = False
    for item in items:
        starts_new = not is_new and _is_new(item, context)
        is_new |= starts_new
        is_other = first is not None and _is_unreadable(first) and not starts_new
        if is_other and isinstance(item, Message) and _is_unreadable(item):
            others.append(item)
            continue
        if first is not None:
            yield first, others
        first, others = item, []
    if first is not None:
        yield first, others


def _is_unreadable(item: Item) -> bool:
    return isinstance(item, Message) and item.text is None


def _unreadable(key: RowKey, items: Sequence[Item], width: int, context: RowContext) -> Iterator[TimelineRow]:
    """Yield one line for several messages that were not encrypted for this device."""
    numbers = tuple(each.sequence_num for each in items if isinstance(each, Message))
    mark = "" if context.is_plain else "· "
    text = f"{mark}{len(numbers):,} messages that cannot be decrypted"
    for line in _continued(Content(text).wrap(width - INDENT), context):
        yield TimelineRow(line, "unreadable", key, numbers[0], also=numbers[1:])


def _is_new(item: Item, context: RowContext) -> bool:
    """Tell whether an item is a message of another user that was unread when the group was opened."""
    return (
        isinstance(item, Message)
        and item.sender_id != context.user_id
        and item.sequence_num > (context.read_before or 0)
    )


def _item(
    item: Item, previous: Item | None, context: RowContext, width: int, countdown_width: int, cache: WrapCache
) -> Iterator[TimelineRow]:
    if isinstance(item, Notice):
        mark = "" if context.is_plain else "· "
        for line in _continued(Content(f"{mark}{item.text}").wrap(width - INDENT), context):
            yield TimelineRow(line, "alarm" if item.is_error else "notice", key_of(item))
        return
    if context.is_plain:
        yield from _plain(item, context, width, cache)
        return
    who = item.sender_id if isinstance(item, Message) else context.user_id
    if not _is_grouped(previous, item, context):
        name = Content("you" if who == context.user_id else context.name(who)).wrap(width - TIME_WIDTH)
        for index, line in enumerate(name):
            right = "" if index else formatting.time_of_day(_time_of(item, context.now))
            yield TimelineRow(line, style_of(who, context.user_id), key_of(item), right=right)
    state = "sending" if context.is_online else "waiting"
    for row in _body(item, width - INDENT, countdown_width, cache, state, mentions=_mentions_user(item, context)):
        yield replace(row, text=FOUND + row.text, indent=0) if _is_found(item, context) else row


def _is_found(item: Item, context: RowContext) -> bool:
    return isinstance(item, Message) and item.sequence_num == context.found


def _mentions_user(item: Message | PendingMessage, context: RowContext) -> bool:
    """Tell whether another user's message mentions the user."""
    is_of_other = isinstance(item, Message) and item.sender_id != context.user_id
    return is_of_other and item.text is not None and context.mentions_user(item.text)


def _body(
    item: Message | PendingMessage, width: int, aside: int, cache: WrapCache, state: str, *, mentions: bool
) -> Iterator[TimelineRow]:
    """``aside``: the width of the right column. ``state``: of a pending message that is not refused."""
    key = key_of(item)
    if isinstance(item, PendingMessage):
        right = "" if item.refused or item.is_held else state
        for line in cache.lines(item.text, width - max(aside, len(right) + 1 if right else 0)):
            yield TimelineRow(line, "pending", key, right=right, indent=INDENT)
            right = ""
        why = KEY_CHANGED if item.is_held else item.refused
        state = f"not sent: {why}  (/retry, /discard)" if why else ""
        if state:
            for line in Content(formatting.sanitize(state)).wrap(width):
                yield TimelineRow(line, "refused", key, indent=INDENT)
        return
    text, style = _text(item)
    style = "mention" if mentions else style
    for index, line in enumerate(cache.lines(text, width - aside)):
        yield TimelineRow(line, style, key, item.sequence_num, None if index else item, indent=INDENT)


def _plain(item: Message | PendingMessage, context: RowContext, width: int, cache: WrapCache) -> Iterator[TimelineRow]:
    """Yield a message as one sentence that never changes: screen readers read each row once."""
    at = formatting.time_of_day(_time_of(item, context.now))
    if isinstance(item, PendingMessage):
        waits = "sending" if context.is_online else "waiting for a connection"
        why = KEY_CHANGED if item.is_held else formatting.sanitize(item.refused)
        state = f"not sent, {why}" if why else waits
        who, ends, text, style, number = "you", f" ({state})", item.text, "pending", 0
    else:
        who = "you" if item.sender_id == context.user_id else context.name(item.sender_id)
        ends = f" (expires at {_clock(item.gone_at, context.now)})" if item.gone_at else ""
        if item.self_destruct_seconds and not item.gone_at:
            ends = f" (self-destructs {duration_words(item.self_destruct_seconds)} after you have read it)"
        (text, style), number = _text(item), item.sequence_num
        style = "mention" if _mentions_user(item, context) else style
    begins = f"{'found: ' if _is_found(item, context) else ''}{who}, {at}: "
    for line in _continued(cache.lines(text, width - len(CONTINUED), begins, ends), context):
        yield TimelineRow(line, style, key_of(item), number)


def _continued(lines: Iterable[Content], context: RowContext) -> Iterator[Content]:
    """Mark the lines after the first one: by a prefix in plain mode, otherwise by an indent."""
    mark = Content(CONTINUED if context.is_plain else " " * INDENT)
    for index, line in enumerate(lines):
        yield mark + line if index else line


def _clock(at: int, now: int) -> str:
    """Format a future time, with the date unless it is today."""
    second = f"{formatting.local_time(at):%H:%M:%S}"
    return second if formatting.day(at) == formatting.day(now) else f"{formatting.day(at)}, {second}"


def _text(message: Message) -> tuple[str, str]:
    if message.text is None:
        return "a message that cannot be decrypted", "unreadable"
    return message.text, "text"


def _is_same_day(one: int, other: int) -> bool:
    return abs(one - other) < _DAY_SECONDS and formatting.day(one) == formatting.day(other)


def _is_grouped(previous: Item | None, item: Message | PendingMessage, context: RowContext) -> bool:
    """Tell whether an item shares the name line of the one before."""
    if previous is None or isinstance(previous, Notice):
        return False
    who = [each.sender_id if isinstance(each, Message) else context.user_id for each in (previous, item)]
    return who[0] == who[1] and _time_of(item, context.now) - _time_of(previous, context.now) <= GROUPING_SECONDS


def _divider(text: str, style: str, key: RowKey, width: int, context: RowContext) -> Iterator[TimelineRow]:
    for line in Content(text).wrap(width - 2):
        label = line.plain.strip()
        yield TimelineRow(Content(label if context.is_plain else f" {label} ".center(width, "─")), style, key)


def _has_countdown(item: Item) -> bool:
    return isinstance(item, Message) and (item.gone_at is not None or item.self_destruct_seconds > 0)


def _time_of(item: Item, now: int) -> int:
    return item.created_at if isinstance(item, Message) else item.at if isinstance(item, Notice) else now
