"""Lays out what is in a group as rows of text: who, what, and how long it is still there."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from textual.content import Content

from conclave.client.chat import formatting
from conclave.client.chat.marking import wrapped
from conclave.client.chat.rooms import Draft, Notice
from conclave.client.chat.trust import HELD
from conclave.client.events import Message
from conclave.retention.durations import duration_words

Item = Message | Notice | Draft

TOGETHER_SECONDS = 300
"""Messages of one person within 5 minutes stand under one name."""

INDENT = 2

GOES_ON = "> "
"""In plain mode each row of a message or a notice begins with this, but for its first one.

Otherwise a text could end a line, or fill it with spaces, and go on as if somebody else had written the next one.
"""

FOUND = Content("▸ ")
"""Stands in place of the indent before the message that the user has gone to."""

FUSE_WIDTH = 11
"""The column of the time that is left: a space, up to 8 cells, a space, and the circle."""

LEAST_WIDTH = 20
"""A narrower screen is treated as if it had 20 columns."""

NAME_COLOURS = 8

TIME_WIDTH = 6
"""The column of the time beside a name: a space, and 5 cells."""

_DAY_SECONDS = 86_400 + 3600
"""The longest day, on which clocks are put back."""


class Key(NamedTuple):
    """Says what a row belongs to, so that it is found again once rows above it are gone."""

    kind: str
    number: int


@dataclass(frozen=True)
class Row:
    """A row. ``style``: its component class. ``message``: set in the first row of one. ``key``: what it belongs to.

    ``also``: the numbers of the other messages that it stands for.
    """

    text: Content
    style: str
    key: Key
    number: int = 0
    message: Message | None = None
    right: str = ""
    indent: int = 0
    also: tuple[int, ...] = ()

    def is_of(self, message: Message) -> bool:
        """Tell whether a message stands in this row, alone or with others."""
        return self.key == key_of(message) or message.sequence_num in self.also


@dataclass(frozen=True)
class Look:
    """What rows depend on beside the items. ``name``: how to call somebody.

    ``read_before``: the line "new" stands after this number; None: there is none. ``has_later``: the end of the items
    is not the group's. ``means_user``: whether a text of somebody else's means the user. ``found``: the number of the
    message that the user has gone to.
    """

    width: int
    name: Callable[[UUID], str]
    user_id: UUID
    now: int
    read_before: int | None = None
    is_plain: bool = False
    is_online: bool = True
    has_later: bool = False
    means_user: Callable[[str], bool] = lambda _: False
    found: int | None = None


def style_of(user_id: UUID, own_id: UUID) -> str:
    """Return the component class of somebody's name: always the same colour for the same person."""
    return "own" if user_id == own_id else f"name-{zlib.crc32(user_id.bytes) % NAME_COLOURS}"


class Wraps:
    """Remembers how texts are wrapped, of those that are shown and of no others."""

    def __init__(self) -> None:
        self._former: dict[tuple[str, int, str, str], list[Content]] = {}
        self._current: dict[tuple[str, int, str, str], list[Content]] = {}

    def end(self) -> None:
        """Forget the texts that were not asked for since the last call: they are not shown any more."""
        self._former, self._current = self._current, {}

    def lines(self, text: str, width: int, before: str = "", after: str = "") -> list[Content]:
        """Return the lines of a message in a width, with what stands before and after it."""
        key = text, width, before, after
        if key not in self._current:
            self._current[key] = self._former.get(key) or wrapped(text, width, before, after)
        return self._current[key]


def lay_out(items: Iterable[Item], look: Look, wraps: Wraps | None = None) -> list[Row]:
    """Return the rows of a group, from the oldest. ``wraps``: what is known of the last time."""
    wraps = wraps or Wraps()
    made = list(_rows(list(items), look, wraps))
    wraps.end()
    return made


def is_gone(item: Item, now: int) -> bool:
    """Tell whether an item may not be shown any more."""
    return isinstance(item, Message) and item.is_gone(now)


def key_of(item: Item) -> Key:
    """Return what the rows of an item are found by."""
    match item:
        case Message():
            return Key("message", item.sequence_num)
        case Notice():
            return Key("notice", hash((item.after, item.at, item.text)))
        case Draft():
            return Key("draft", item.send_id.int)


def left(message: Message, now: int) -> tuple[str, str, str]:
    """Say how long a message is still there: in words, as a circle, and in which style; all "" if it stays."""
    timed = bool(message.self_destruct_seconds)
    if message.gone_at is None:
        return (f"{formatting.remaining(message.self_destruct_seconds)}", "✶", "fuse") if timed else ("", "", "")
    seconds = message.gone_at - now
    whole = min(message.gone_at - message.created_at, message.self_destruct_seconds or message.gone_at)
    style = "fuse-ends" if seconds <= 10 else "fuse-short" if 4 * seconds <= whole else "fuse"
    return formatting.remaining(seconds), "✶" if timed else formatting.fuse(seconds, whole), style


def _rows(items: list[Item], look: Look, wraps: Wraps) -> Iterator[Row]:
    fuse = FUSE_WIDTH if any(_ends(each) for each in items) and not look.is_plain else 0
    width = max(LEAST_WIDTH, look.width)
    above: Item | None = None
    is_new_told = look.read_before is None
    for item, also in _together(items, look):
        key = key_of(item)
        at = _at(item, look.now)
        if above is None or not _is_same_day(_at(above, look.now), at):
            yield from _ruled(formatting.day(at), "day", key, width, look)
            above = None
        if not is_new_told and _is_new(item, look):
            yield from _ruled("new", "new", key, width, look)
            is_new_told, above = True, None
        if also:
            yield from _unreadable(key, (item, *also), width, look)
            above = Notice(0, also[-1].created_at, "")  # what follows begins with a name
        else:
            yield from _item(item, above, look, width, fuse, wraps)
            above = item


def _together(items: Iterable[Item], look: Look) -> Iterator[tuple[Item, list[Message]]]:
    """Return items, and with the first one of several messages in a row that cannot be read the others."""
    first: Item | None = None
    others: list[Message] = []
    is_new = False
    for item in items:
        begins_new = not is_new and _is_new(item, look)
        is_new |= begins_new
        is_other = first is not None and _is_unreadable(first) and not begins_new
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


def _unreadable(key: Key, items: Sequence[Item], width: int, look: Look) -> Iterator[Row]:
    """One line for several messages: they were not for this device."""
    numbers = tuple(each.sequence_num for each in items if isinstance(each, Message))
    mark = "" if look.is_plain else "· "
    text = f"{mark}{len(numbers):,} messages that this client cannot read"
    for line in _going_on(Content(text).wrap(width - INDENT), look):
        yield Row(line, "unreadable", key, numbers[0], also=numbers[1:])


def _is_new(item: Item, look: Look) -> bool:
    """Tell whether an item is a message of somebody else that was unread when the group was opened."""
    return isinstance(item, Message) and item.sender_id != look.user_id and item.sequence_num > (look.read_before or 0)


def _item(item: Item, above: Item | None, look: Look, width: int, fuse: int, wraps: Wraps) -> Iterator[Row]:
    if isinstance(item, Notice):
        mark = "" if look.is_plain else "· "
        for line in _going_on(Content(f"{mark}{item.text}").wrap(width - INDENT), look):
            yield Row(line, "alarm" if item.is_bad else "notice", key_of(item))
        return
    if look.is_plain:
        yield from _plain(item, look, width, wraps)
        return
    who = item.sender_id if isinstance(item, Message) else look.user_id
    if not _goes_on(above, item, look):
        name = Content("you" if who == look.user_id else look.name(who)).wrap(width - TIME_WIDTH)
        for index, line in enumerate(name):
            right = "" if index else formatting.time_of_day(_at(item, look.now))
            yield Row(line, style_of(who, look.user_id), key_of(item), right=right)
    state = "sending" if look.is_online else "waits"
    for row in _body(item, width - INDENT, fuse, wraps, state, mentions=_mentions(item, look)):
        yield replace(row, text=FOUND + row.text, indent=0) if _is_found(item, look) else row


def _is_found(item: Item, look: Look) -> bool:
    return isinstance(item, Message) and item.sequence_num == look.found


def _mentions(item: Message | Draft, look: Look) -> bool:
    """Tell whether somebody else means the user."""
    is_of_other = isinstance(item, Message) and item.sender_id != look.user_id
    return is_of_other and item.text is not None and look.means_user(item.text)


def _body(item: Message | Draft, width: int, aside: int, wraps: Wraps, state: str, *, mentions: bool) -> Iterator[Row]:
    """``aside``: the cells of the column on the right. ``state``: of a draft that is neither sent nor refused."""
    key = key_of(item)
    if isinstance(item, Draft):
        right = "" if item.refused or item.is_held else state
        for line in wraps.lines(item.text, width - max(aside, len(right) + 1 if right else 0)):
            yield Row(line, "draft", key, right=right, indent=INDENT)
            right = ""
        why = HELD if item.is_held else item.refused
        state = f"not sent: {why}  (/retry, /discard)" if why else ""
        if state:
            for line in Content(formatting.harmless(state)).wrap(width):
                yield Row(line, "refused", key, indent=INDENT)
        return
    text, style = _text(item)
    style = "mention" if mentions else style
    for index, line in enumerate(wraps.lines(text, width - aside)):
        yield Row(line, style, key, item.sequence_num, None if index else item, indent=INDENT)


def _plain(item: Message | Draft, look: Look, width: int, wraps: Wraps) -> Iterator[Row]:
    """One sentence, in which nothing changes until it is gone: a screen reader reads each row once."""
    at = formatting.time_of_day(_at(item, look.now))
    if isinstance(item, Draft):
        waits = "sending" if look.is_online else "waits for a connection"
        why = HELD if item.is_held else formatting.harmless(item.refused)
        state = f"not sent, {why}" if why else waits
        who, ends, text, style, number = "you", f" ({state})", item.text, "draft", 0
    else:
        who = "you" if item.sender_id == look.user_id else look.name(item.sender_id)
        ends = f" (gone at {_clock(item.gone_at, look.now)})" if item.gone_at else ""
        if item.self_destruct_seconds and not item.gone_at:
            ends = f" (gone {duration_words(item.self_destruct_seconds)} after you have read it)"
        (text, style), number = _text(item), item.sequence_num
        style = "mention" if _mentions(item, look) else style
    begins = f"{'found: ' if _is_found(item, look) else ''}{who}, {at}: "
    for line in _going_on(wraps.lines(text, width - len(GOES_ON), begins, ends), look):
        yield Row(line, style, key_of(item), number)


def _going_on(lines: Iterable[Content], look: Look) -> Iterator[Content]:
    """Mark the lines after the first one: by words where a screen reader reads, by their place where eyes do."""
    mark = Content(GOES_ON if look.is_plain else " " * INDENT)
    for index, line in enumerate(lines):
        yield mark + line if index else line


def _clock(at: int, now: int) -> str:
    """Write when something will be, with the day if it is not today."""
    second = f"{formatting.moment(at):%H:%M:%S}"
    return second if formatting.day(at) == formatting.day(now) else f"{formatting.day(at)}, {second}"


def _text(message: Message) -> tuple[str, str]:
    if message.text is None:
        return "a message that this client cannot read", "unreadable"
    return message.text, "text"


def _is_same_day(one: int, other: int) -> bool:
    return abs(one - other) < _DAY_SECONDS and formatting.day(one) == formatting.day(other)


def _goes_on(above: Item | None, item: Message | Draft, look: Look) -> bool:
    """Tell whether an item stands under the name of the one above it."""
    if above is None or isinstance(above, Notice):
        return False
    who = [each.sender_id if isinstance(each, Message) else look.user_id for each in (above, item)]
    return who[0] == who[1] and _at(item, look.now) - _at(above, look.now) <= TOGETHER_SECONDS


def _ruled(text: str, style: str, key: Key, width: int, look: Look) -> Iterator[Row]:
    for line in Content(text).wrap(width - 2):
        label = line.plain.strip()
        yield Row(Content(label if look.is_plain else f" {label} ".center(width, "─")), style, key)


def _ends(item: Item) -> bool:
    return isinstance(item, Message) and (item.gone_at is not None or item.self_destruct_seconds > 0)


def _at(item: Item, now: int) -> int:
    return item.created_at if isinstance(item, Message) else item.at if isinstance(item, Notice) else now
