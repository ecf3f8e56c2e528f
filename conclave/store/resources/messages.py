"""Messages of the hot store: append them, and read pages."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from conclave.clock import Clock
from conclave.events import MessageStored
from conclave.failpoints import reach
from conclave.retention import stretches, visibility
from conclave.retention.fate import MessageFacts
from conclave.retention.policy import FOREVER
from conclave.retention.stretches import Stretch
from conclave.retention.visibility import ReaderMessages, Visibility
from conclave.store import bodies, invalidation
from conclave.store.engine.sqlite import insert_many
from conclave.store.resources import fetch_gaps, members, taken_back, timers
from conclave.store.resources.fetch_gaps import Omissions
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import Membership, NoMembershipError
from conclave.store.resources.users import ID_BYTES
from conclave.store.sender_index import SENT

PAGE_BYTES = 2 * 1024 * 1024
"""A page has at most 2 MiB of bodies, or a single message, so it is encoded and sent as a whole."""


COLUMNS = "group_key, sequence_num, sender_id, is_commit, created_at, size"
"""The columns of a message, without its body. ``size``: bytes of the body, before encryption."""


class MessageDraft(NamedTuple):
    """A message to be stored.

    ``self_destruct_seconds``: how long each reader may see it after reading it; 0: not self-destructing.
    """

    group_key: int
    sender_id: bytes
    body: bytes
    is_commit: bool = False
    self_destruct_seconds: int = 0


class MessageRow(NamedTuple):
    """A stored message. ``created_at``: Unix seconds. ``is_kept``: a commit that does not expire by age.

    ``self_destruct_seconds`` and ``redact_at``: see MessageDraft and EncodedMessage.
    """

    sequence_num: int
    sender_id: bytes
    mls_message: bytes
    created_at: int
    is_kept: bool = False
    self_destruct_seconds: int = 0
    redact_at: int = FOREVER


class EncodeMessage(Protocol):
    """Encodes a message for its readers.

    ``created_at``: Unix seconds. ``expires_at``: the first Unix second at which it is no longer served because of its
    age; 0: never. ``redacted``: the reader sees only that it exists; ``body`` is empty.
    """

    def __call__(
        self,
        sequence_num: int,
        sender_id: bytes,
        body: bytes,
        created_at: int,
        expires_at: int,
        self_destruct_seconds: int = 0,
        *,
        redacted: bool = False,
    ) -> bytes:
        """Return the encoded message."""


class EncodedMessage(NamedTuple):
    """A message as encoded for its readers. ``created_at`` and ``is_kept``: see MessageRow.

    ``redact_at``: the first Unix second at which it must be redacted for this reader; FOREVER: never. ``is_redacted``:
    it is redacted already.
    """

    sequence_num: int
    created_at: int
    piece: bytes
    is_kept: bool = False
    redact_at: int = FOREVER
    is_redacted: bool = False


@dataclass(frozen=True)
class MessagePage:
    """The messages of one response, in ascending order of their numbers.

    ``fetched_up_to``: the watermark of the reader after the response, unless reduced by ``omissions``. ``visibility``:
    the messages that the reader may see. ``archived``: archived messages that come first; then ``messages`` is empty.
    ``touch``: the last touch when the page was read. ``end``: the page has all visible messages up to this number; None
    if unknown. ``omissions``: messages omitted because the clock is in doubt.
    """

    messages: list[EncodedMessage]
    member: Membership
    fetched_up_to: int
    visibility: Visibility
    archived: Stretch | None = None
    touch: int = 0
    end: int | None = None
    omissions: Omissions = fetch_gaps.NO_OMISSIONS


def append_all(connection: sqlite3.Connection, drafts: Sequence[MessageDraft], now: int) -> list[MessageStored]:
    """Store messages (at most some hundreds) and return the news for caches. Raises StoreFullError.

    A sender's watermark is raised only if it was at the group's last number: the sender may not have fetched earlier
    messages of others.
    """
    news = _append(connection, drafts, now)
    connection.executemany(
        "UPDATE members SET watermark = ? WHERE group_key = ? AND user_id = ? AND watermark = ?",
        [(each.sequence_num, each.group_key, each.sender_id, each.sequence_num - 1) for each in news],
    )
    return news


def append_stored(
    connection: sqlite3.Connection, group_key: int, sender_id: bytes, body_id: int, now: int, *, is_commit: bool
) -> MessageStored:
    """Turn the stored body ``body_id`` into a message, and return the news for caches.

    The sender need not be a member. The sender's watermark is not raised: the body may be old, and the sender has to
    fetch the message. Marks that a wrong clock set to the future do not hide it.
    """
    body = bodies.get(connection, body_id)
    bodies.erase(connection, [body_id])
    return _append(connection, [MessageDraft(group_key, sender_id, body, is_commit)], now)[0]


def _append(connection: sqlite3.Connection, drafts: Sequence[MessageDraft], now: int) -> list[MessageStored]:
    """Number the messages of each group in the order of ``drafts``, and store them."""
    state_by_group: dict[int, tuple[int, int]] = {}
    group_ids: dict[int, bytes] = {}
    for group_key, count in Counter(draft.group_key for draft in drafts).items():
        last, expired_before, group_ids[group_key] = bodies.allocate_numbers(connection, group_key, count)
        state_by_group[group_key] = last - count, max(now, expired_before)
    reach("send.numbered")
    rows, news = [], []
    for draft in drafts:
        last_number, created_at = state_by_group[draft.group_key]
        state_by_group[draft.group_key] = number, _ = last_number + 1, created_at
        rows.append((draft.group_key, number, draft.sender_id, draft.is_commit, created_at, len(draft.body)))
        is_timed = draft.self_destruct_seconds > 0
        news.append(MessageStored(draft.group_key, number, draft.sender_id, draft.body, created_at, is_timed))
    locations = [(group_ids[each.group_key], each.sequence_num) for each in news]
    ciphertexts = bodies.encrypt(connection, locations, [draft.body for draft in drafts])
    ids = [bodies.message_id(each.group_key, each.sequence_num) for each in news]
    bodies.put_messages(connection, list(zip(ids, ciphertexts, strict=True)))
    insert_many(connection, f"INSERT INTO messages ({COLUMNS})", rows)
    reach("send.stored")
    if any(draft.self_destruct_seconds for draft in drafts):
        self_destructing = [
            (draft.group_key, each.sequence_num, draft.sender_id, draft.self_destruct_seconds)
            for draft, each in zip(drafts, news, strict=True)
            if draft.self_destruct_seconds
        ]
        timers.add_messages(connection, self_destructing, now)
    return news


def find_sent(connection: sqlite3.Connection, group_key: int, number: int) -> MessageFacts | None:
    """Return the metadata of a message of the hot store; None if it is not there."""
    row = connection.execute(
        "SELECT created_at, sender_id, is_commit FROM messages WHERE group_key = ? AND sequence_num = ?",
        (group_key, number),
    ).fetchone()
    return MessageFacts(row[0], row[1], bool(row[2])) if row else None


def usage_of_sender(connection: sqlite3.Connection, user_id: bytes) -> tuple[int, int]:
    """Return the number of a user's application messages in the hot store, and the size of their bodies in bytes."""
    messages, size = connection.execute(
        f"SELECT count(*), ifnull(sum(size), 0) FROM {SENT} WHERE sender_id = ? AND NOT is_commit", (user_id,)
    ).fetchone()
    return messages, size


def read_page(
    connection: sqlite3.Connection,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    clock: Clock,
    encode_message: EncodeMessage,
    used_bytes: int = 0,
    *,
    include_redacted: bool = False,
) -> MessagePage:
    """Read up to ``limit`` visible messages with numbers greater than ``after``.

    ``encode_message``: encodes a message. ``used_bytes``: bytes of bodies that the page has already.
    ``include_redacted``: include messages that are redacted for the reader, without their bodies. The page has fewer
    messages if their bodies would exceed PAGE_BYTES, but at least one if ``used_bytes`` is 0. If the next messages are
    in the archive, the page has only their location. Raises NoMembershipError.
    """
    touch = invalidation.last_invalidation(connection)
    member = members.current(connection, group_id, user_id, clock)
    if member is None:
        raise NoMembershipError
    group = member.group
    moment = clock.moment()
    view = visibility.of_group(connection, group, moment.now)
    reader_messages = None
    if group.self_destructs or group.taken_back_count:
        reader_messages = visibility.of_reader(member.member_id, member.joined_after, include_redacted=include_redacted)
    claimed = min(after, group.last_seq)
    omissions = fetch_gaps.find_omissions(connection, member, view, moment, reader_messages, claimed)
    archived = stretches.stretch(connection, group, claimed, view, include_redacted=include_redacted)
    if archived:
        return MessagePage([], member, claimed, view, archived, touch, omissions=omissions)
    begin = visibility.pass_hidden(connection, group, view, max(claimed, group.archived_seq))
    first_timed = _first_timed(connection, group.group_key, begin) if reader_messages else None
    page_filter = reader_messages if first_timed else None
    encoded, count = _read_encoded(connection, group, limit, view, page_filter, begin, used_bytes, encode_message)
    last = encoded[-1].sequence_num if encoded else 0
    is_last = len(encoded) == count < limit
    end = group.last_seq if is_last else last
    if first_timed and first_timed <= end:
        # The page depends on the reader, so ``end`` is None. Messages hidden from this reader count as fetched.
        return MessagePage(encoded, member, max(end, claimed), view, None, touch, omissions=omissions)
    return MessagePage(encoded, member, max(last, claimed), view, None, touch, end, omissions)


def encode(message: MessageRow, body: bytes, view: Visibility, encode_message: EncodeMessage) -> EncodedMessage:
    """Encode a message that ``view`` admits; without its body if it is redacted for the reader."""
    number, sender_id, _, created_at, is_kept, seconds, redact_at = message
    expires_at = 0 if is_kept else view.policy.expires_at(created_at)
    if view.is_redacted(message):
        text = encode_message(number, sender_id, b"", created_at, expires_at, seconds, redacted=True)
        return EncodedMessage(number, created_at, text, is_kept, is_redacted=True)
    return EncodedMessage(
        number, created_at, encode_message(number, sender_id, body, created_at, expires_at, seconds), is_kept, redact_at
    )


def _first_timed(connection: sqlite3.Connection, group_key: int, after: int) -> int | None:
    """Return the first number greater than ``after`` of a self-destructing or withdrawn message, or None."""
    numbers = (each.first_after(connection, group_key, after) for each in (timers, taken_back))
    return min((number for number in numbers if number is not None), default=None)


def _read_encoded(
    connection: sqlite3.Connection,
    group: GroupRow,
    limit: int,
    view: Visibility,
    reader_messages: ReaderMessages | None,
    begin: int,
    used_bytes: int,
    encode_message: EncodeMessage,
) -> tuple[list[EncodedMessage], int]:
    """Encode the messages of a page, except those with destroyed keys; return them, and how many rows were found.

    ``reader_messages``: None if no message there is self-destructing or withdrawn. The result is empty only at the end
    of the messages: an empty page means that no more messages follow.
    """
    while True:
        if reader_messages:
            rows, sizes = _timed_rows(connection, group.group_key, limit, view, reader_messages, begin)
        else:
            rows, sizes = _rows(connection, group.group_key, limit, view, begin)
        fitting_rows = rows[: _fitting_count(sizes, used_bytes)]
        encoded = _with_bodies(connection, group, fitting_rows, view, encode_message)
        # If nothing fits beside what the page has already, the page ends here.
        if encoded or not fitting_rows or len(fitting_rows) == len(rows) < limit:
            return encoded, len(rows)
        begin = fitting_rows[-1].sequence_num


_Rows = tuple[list[MessageRow], list[int]]
"""The messages of a page without bodies, and the sizes of the bodies that the reader gets."""


def _fitting_count(sizes: Sequence[int], used_bytes: int) -> int:
    """Return how many messages fit on the page, counted from the first."""
    total = used_bytes
    for count, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES and (count or used_bytes):
            return count
    return len(sizes)


def _with_bodies(
    connection: sqlite3.Connection,
    group: GroupRow,
    messages: Sequence[MessageRow],
    view: Visibility,
    encode_message: EncodeMessage,
) -> list[EncodedMessage]:
    """Encode messages. Bodies of redacted messages are not read, and messages with destroyed keys are omitted."""
    readable_numbers = [each.sequence_num for each in messages if not view.is_redacted(each)]
    ciphertexts = bodies.of_messages(
        connection, [bodies.message_id(group.group_key, number) for number in readable_numbers]
    )
    body_by_number = dict(
        zip(readable_numbers, bodies.decrypt(connection, group.group_id, readable_numbers, ciphertexts), strict=True)
    )
    encoded = []
    for message in messages:
        body = body_by_number.get(message.sequence_num, b"")
        if body is not None:
            encoded.append(encode(message, body, view, encode_message))
    return encoded


def _rows(connection: sqlite3.Connection, group_key: int, limit: int, view: Visibility, after: int) -> _Rows:
    """Return the messages of a page.

    SQLite returns them as one row, each column as one text, see ``bodies.of_messages``.
    """
    condition, is_kept = view.hot
    *columns, senders = connection.execute(
        "SELECT group_concat(sequence_num), group_concat(created_at), group_concat(is_kept), group_concat(size),"
        " group_concat(hex(sender_id), '') FROM"
        f" (SELECT sequence_num, created_at, {is_kept} AS is_kept, size, sender_id FROM messages"
        f" WHERE group_key = :group_key AND {condition} ORDER BY sequence_num LIMIT :limit)",
        {"group_key": group_key, "limit": limit, **view.bounds(after)},
    ).fetchone()
    if senders is None:
        return [], []
    numbers, times, kept_flags, sizes = orjson.loads(f"[[{'],['.join(columns)}]]")
    ids = bytes.fromhex(senders)
    sender_ids = [ids[begin : begin + ID_BYTES] for begin in range(0, len(ids), ID_BYTES)]
    rows = sorted(
        zip(numbers, sender_ids, times, kept_flags, sizes, strict=True)
    )  # SQLite does not guarantee the order of group_concat
    messages = [MessageRow(number, sender, b"", at, kept_flag == 1) for number, sender, at, kept_flag, _ in rows]
    return messages, [row[4] for row in rows]


def _timed_rows(
    connection: sqlite3.Connection,
    group_key: int,
    limit: int,
    view: Visibility,
    reader_messages: ReaderMessages,
    after: int,
) -> _Rows:
    """Return the messages of a page that has self-destructing or withdrawn ones."""
    condition, is_kept = view.hot
    rows = connection.execute(
        f"SELECT sequence_num, sender_id, created_at, {is_kept}, ifnull(seconds, 0), redact_at, size"
        f" FROM ({reader_messages.query}) WHERE group_key = :group_key AND {condition} AND {reader_messages.condition}"
        " ORDER BY sequence_num LIMIT :limit",
        {"group_key": group_key, "limit": limit, "now": view.now, **reader_messages.values, **view.bounds(after)},
    )
    messages, sizes = [], []
    for number, sender, created_at, kept_flag, seconds, redact_at, size in rows:
        message = MessageRow(number, sender, b"", created_at, bool(kept_flag), seconds, redact_at)
        messages.append(message)
        sizes.append(0 if view.is_redacted(message) else size)
    return messages, sizes
