"""Lays out what is in a group as rows of text: who, what, and how long it is still there."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from textual.content import Content

from conclave.client.chat import words
from conclave.client.chat.rooms import Draft, Notice
from conclave.client.news import Message
from conclave.retention.durations import duration_words

Item = Message | Notice | Draft

TOGETHER_SECONDS = 300
"""Messages of one person within 5 minutes stand under one name."""

INDENT = 2

FUSE_WIDTH = 11
"""The column of the time that is left: a space, up to 8 cells, a space, and the circle."""

LEAST_WIDTH = 20
"""A narrower screen is treated as if it had 20 columns."""

NAME_COLOURS = 8

TIME_WIDTH = 6
"""The column of the time beside a name: a space, and 5 cells."""

_wrapped: WeakKeyDictionary[Message, tuple[tuple[int, str, str], list[Content]]] = WeakKeyDictionary()
"""The lines of messages, with what they were made for: to wrap all of them at each change would take seconds.

Lines go with their messages, so that no text stays in memory longer than its message.
"""


class Key(NamedTuple):
    """Says what a row belongs to, so that it is found again once rows above it are gone."""

    kind: str
    number: int


@dataclass(frozen=True)
class Row:
    """A row. ``style``: its component class. ``message``: set in the first row of one. ``key``: what it belongs to."""

    text: Content
    style: str
    key: Key
    number: int = 0
    message: Message | None = None
    right: str = ""
    indent: int = 0


@dataclass(frozen=True)
class Look:
    """What rows depend on beside the items. ``name``: how to call somebody."""

    width: int
    name: Callable[[UUID], str]
    user_id: UUID
    now: int
    read_before: int | None = None
    is_plain: bool = False


def style_of(user_id: UUID, own_id: UUID) -> str:
    """Return the component class of somebody's name: always the same colour for the same person."""
    return "own" if user_id == own_id else f"name-{zlib.crc32(user_id.bytes) % NAME_COLOURS}"


def lay_out(items: Iterable[Item], look: Look) -> list[Row]:
    """Return the rows of a group, from the oldest."""
    return list(_rows(list(items), look))


def is_gone(item: Item, now: int) -> bool:
    """Tell whether an item may not be shown any more."""
    return isinstance(item, Message) and item.gone_at is not None and item.gone_at <= now


def left(message: Message, now: int) -> tuple[str, str, str]:
    """Say how long a message is still there: in words, as a circle, and in which style; all "" if it stays."""
    timed = bool(message.self_destruct_seconds)
    if message.gone_at is None:
        return (f"{words.remaining(message.self_destruct_seconds)}", "✶", "fuse") if timed else ("", "", "")
    seconds = message.gone_at - now
    whole = min(message.gone_at - message.created_at, message.self_destruct_seconds or message.gone_at)
    style = "fuse-ends" if seconds <= 10 else "fuse-short" if 4 * seconds <= whole else "fuse"
    return words.remaining(seconds), "✶" if timed else words.fuse(seconds, whole), style


def _rows(items: list[Item], look: Look) -> Iterator[Row]:
    fuse = FUSE_WIDTH if any(_ends(each) for each in items) and not look.is_plain else 0
    width = max(LEAST_WIDTH, look.width)
    above: Item | None = None
    is_new_told = look.read_before is None
    for item in items:
        key = _key(item)
        at = _at(item, look.now)
        if above is None or words.day(_at(above, look.now)) != words.day(at):
            yield from _ruled(words.day(at), "day", key, width, look)
            above = None
        if not is_new_told and _is_new(item, look):
            yield from _ruled("new", "new", key, width, look)
            is_new_told, above = True, None
        yield from _item(item, above, width, fuse, look)
        above = item


def _is_new(item: Item, look: Look) -> bool:
    """Tell whether an item is a message of somebody else that was unread when the group was opened."""
    return isinstance(item, Message) and item.sender_id != look.user_id and item.sequence_num > (look.read_before or 0)


def _item(item: Item, above: Item | None, width: int, fuse: int, look: Look) -> Iterator[Row]:
    if isinstance(item, Notice):
        mark = "" if look.is_plain else "· "
        for line in Content(f"{mark}{item.text}").wrap(width):
            yield Row(line, "notice", _key(item))
        return
    if look.is_plain:
        yield from _plain(item, width, look)
        return
    who = item.sender_id if isinstance(item, Message) else look.user_id
    if not _goes_on(above, item, look):
        name = Content("you" if who == look.user_id else look.name(who)).truncate(width - TIME_WIDTH, ellipsis=True)
        yield Row(name, style_of(who, look.user_id), _key(item), right=words.time_of_day(_at(item, look.now)))
    yield from _body(item, width - INDENT - fuse)


def _body(item: Message | Draft, width: int) -> Iterator[Row]:
    key = _key(item)
    if isinstance(item, Draft):
        text = words.shown(item.text)
        state = f"not sent: {item.refused}  (/retry, /discard)" if item.refused else ""
        for line in Content(text).wrap(width):
            yield Row(line, "draft", key, indent=INDENT)
        if state:
            for line in Content(words.harmless(state)).wrap(width):
                yield Row(line, "refused", key, indent=INDENT)
        return
    for index, line in enumerate(_lines(item, width)):
        yield Row(line, _style(item), key, item.sequence_num, None if index else item, indent=INDENT)


def _lines(message: Message, width: int, before: str = "", after: str = "") -> list[Content]:
    """Return the lines of a message with what stands before and after it; made anew only if that is not the same."""
    made_for, known = (width, before, after), _wrapped.get(message)
    if known is None or known[0] != made_for:
        known = _wrapped[message] = (made_for, list(Content(f"{before}{_text(message)}{after}").wrap(width)))
    return known[1]


def _plain(item: Message | Draft, width: int, look: Look) -> Iterator[Row]:
    """One sentence, in which nothing changes until it is gone: a screen reader reads each row once."""
    at = words.time_of_day(_at(item, look.now))
    if isinstance(item, Draft):
        state = f"not sent, {words.harmless(item.refused)}" if item.refused else "sending"
        for line in Content(f"you, {at}: {words.shown(item.text)} ({state})").wrap(width):
            yield Row(line, "draft", _key(item))
    else:
        who = "you" if item.sender_id == look.user_id else look.name(item.sender_id)
        ends = f" (gone at {_clock(item.gone_at, look.now)})" if item.gone_at else ""
        if item.self_destruct_seconds and not item.gone_at:
            ends = f" (gone {duration_words(item.self_destruct_seconds)} after you have read it)"
        for line in _lines(item, width, f"{who}, {at}: ", ends):
            yield Row(line, _style(item), _key(item), item.sequence_num)


def _clock(at: int, now: int) -> str:
    """Write when something will be: with seconds if that is within the hour, with the day if it is not today."""
    if at - now < 3600:
        return f"{words.moment(at):%H:%M:%S}"
    return words.time_of_day(at) if words.day(at) == words.day(now) else words.date_and_time(at)


def _text(message: Message) -> str:
    return "a message that this client cannot read" if message.text is None else words.shown(message.text)


def _style(message: Message) -> str:
    return "unreadable" if message.text is None else "text"


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


def _key(item: Item) -> Key:
    match item:
        case Message():
            return Key("message", item.sequence_num)
        case Notice():
            return Key("notice", hash((item.after, item.at, item.text)))
        case Draft():
            return Key("draft", item.send_id.int)
