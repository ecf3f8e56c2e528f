"""Messages of the hot store: append one under the group's counter, and read a page of them."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from conclave.clock import Clock
from conclave.events import Stored
from conclave.failpoints import reach
from conclave.retention import stretches, visibility
from conclave.retention.fate import Sent
from conclave.retention.policy import FOREVER
from conclave.retention.stretches import Stretch
from conclave.retention.visibility import Sight, Timed
from conclave.store import at_rest, bodies, invalidation
from conclave.store.engine.connection import of_store
from conclave.store.engine.sqlite import insert_many
from conclave.store.resources import fetch_gaps, members, taken_back, timers
from conclave.store.resources.fetch_gaps import Doubt
from conclave.store.resources.groups import Group
from conclave.store.resources.members import Membership, NoMembershipError
from conclave.store.resources.users import ID_BYTES

PAGE_BYTES = 2 * 1024 * 1024
"""A page has at most 2 MiB of bodies, or one message: so any page is written and sent at once."""


class Draft(NamedTuple):
    """A message that is to be stored. ``body``: None if it is stored already.

    ``self_destruct_seconds``: how long each reader may see it once it was read; 0: for ever.
    """

    group_key: int
    sender_id: bytes
    body: bytes | None
    is_commit: bool = False
    self_destruct_seconds: int = 0


class StoredMessage(NamedTuple):
    """A message as it is stored. ``created_at``: Unix seconds. ``is_kept``: a commit that does not expire by age.

    ``self_destruct_seconds`` and ``redact_at``: see Draft and Piece.
    """

    sequence_num: int
    sender_id: bytes
    mls_message: bytes
    created_at: int
    is_kept: bool = False
    self_destruct_seconds: int = 0
    redact_at: int = FOREVER


class WriteMessage(Protocol):
    """Writes a message as its readers get it: number, sender's id, body, Unix second at which it was stored.

    ``expires_at``: the first Unix second at which it is no longer served because of its age, 0 for none. ``redacted``:
    the reader sees only that it is there; ``body`` is empty.
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
        """Return the message as it is written."""


class Piece(NamedTuple):
    """A message as it is written for its readers. ``created_at`` and ``is_kept``: as of StoredMessage.

    ``redact_at``: the first Unix second at which this reader may not get it in this form; FOREVER: there is none.
    ``is_redacted``: it says only that the message is there.
    """

    sequence_num: int
    created_at: int
    piece: bytes
    is_kept: bool = False
    redact_at: int = FOREVER
    is_redacted: bool = False


@dataclass(frozen=True)
class Page:
    """The messages of one response, in ascending order of their numbers.

    ``fetched_up_to``: the watermark of the reader once it has the response, but for ``doubt``. ``sight``: what the
    reader may see.
    ``archived``: messages of the archive that come first; if there are any, ``messages`` is empty. ``touch``: the page
    was read as of this touch. ``end``: all messages up to this number that ``sight`` admits are here; None if that is
    not known. ``doubt``: for what it does not count.
    """

    messages: list[Piece]
    member: Membership
    fetched_up_to: int
    sight: Sight
    archived: Stretch | None = None
    touch: int = 0
    end: int | None = None
    doubt: Doubt = fetch_gaps.NONE


def append_all(connection: sqlite3.Connection, drafts: Sequence[Draft], now: int) -> list[Stored]:
    """Store messages (at most some hundreds) and return what caches have to hear of them. Raises StoreFullError.

    A sender's watermark rises only if it was at the group's last number. A sender has seen the own message, but perhaps
    not those that others sent before it.
    """
    stored = _append(connection, drafts, now)
    connection.executemany(
        "UPDATE members SET watermark = ? WHERE group_key = ? AND user_id = ? AND watermark = ?",
        [(each.sequence_num, each.group_key, each.sender_id, each.sequence_num - 1) for each in stored],
    )
    return stored


def append_stored(
    connection: sqlite3.Connection, group_key: int, sender_id: bytes, body_id: int, now: int, *, is_commit: bool
) -> Stored:
    """Make the stored body ``body_id`` a message, and return what caches have to hear of it.

    The sender need not be a member. No watermark moves: the sender may have made the body some time ago, does not know
    that it is a message now, and has to fetch it. A mark that a wrong clock left ahead of ``now`` does not hide it.
    """
    draft = Draft(group_key, sender_id, None, is_commit)
    if of_store(connection).keys is None:
        return _append(connection, [draft], now, [body_id])[0]
    # It was stored before it had a number, and so without a key.
    body = bodies.get(connection, body_id)
    stored = _append(connection, [draft._replace(body=body)], now)[0]
    bodies.erase(connection, [body_id])
    return stored._replace(body=None)


def _append(
    connection: sqlite3.Connection, drafts: Sequence[Draft], now: int, body_ids: Sequence[int] | None = None
) -> list[Stored]:
    """Number the messages of each group in the order of ``drafts``, and store them.

    ``body_ids``: their bodies, if they are stored already.
    """
    ahead: dict[int, tuple[int, int]] = {}
    named: dict[int, bytes] = {}
    for group_key, count in Counter(draft.group_key for draft in drafts).items():
        last, expired_before, named[group_key] = at_rest.number(connection, group_key, count)
        ahead[group_key] = last - count, max(now, expired_before)
    reach("send.numbered")
    numbers = []
    for draft in drafts:
        former, created_at = ahead[draft.group_key]
        ahead[draft.group_key] = number, _ = former + 1, created_at
        numbers.append(number)
    if body_ids is None:
        given = [draft.body or b"" for draft in drafts]
        placed = [(named[draft.group_key], number) for draft, number in zip(drafts, numbers, strict=True)]
        body_ids = bodies.put_many(connection, at_rest.encrypted(connection, placed, given))
    rows, stored = [], []
    for draft, number, body_id in zip(drafts, numbers, body_ids, strict=True):
        created_at = ahead[draft.group_key][1]
        rows.append((body_id, draft.group_key, number, draft.sender_id, draft.is_commit, created_at))
        is_timed = draft.self_destruct_seconds > 0
        stored.append(Stored(draft.group_key, number, draft.sender_id, draft.body, created_at, is_timed))
    insert_many(
        connection,
        "INSERT INTO messages (message_id, group_key, sequence_num, sender_id, is_commit, created_at)",
        rows,
    )
    reach("send.stored")
    if any(draft.self_destruct_seconds for draft in drafts):
        timed = [
            (draft.group_key, row[2], draft.sender_id, draft.self_destruct_seconds)
            for draft, row in zip(drafts, rows, strict=True)
            if draft.self_destruct_seconds
        ]
        timers.begin(connection, timed, now)
    return stored


def find_sent(connection: sqlite3.Connection, group_key: int, number: int) -> Sent | None:
    """Return what is known of a message of the hot store but its body; None if it is not there."""
    row = connection.execute(
        "SELECT created_at, sender_id, is_commit FROM messages WHERE group_key = ? AND sequence_num = ?",
        (group_key, number),
    ).fetchone()
    return Sent(row[0], row[1], bool(row[2])) if row else None


def page(
    connection: sqlite3.Connection,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    clock: Clock,
    write: WriteMessage,
    taken: int = 0,
    *,
    include_redacted: bool = False,
) -> Page:
    """Read up to ``limit`` messages with numbers greater than ``after``, none of them expired.

    ``write``: how each is written. ``taken``: how many bytes of bodies the page has already. ``include_redacted``:
    messages that the reader sees only redacted are there too, without their bodies. The page gets fewer messages
    if all its bodies would have more than PAGE_BYTES; but at least one if ``taken`` is 0. If the next messages are in
    the archive, the page has none, and says where they are. Raises NoMembershipError.
    """
    touch = invalidation.last_invalidation(connection)
    member = members.current(connection, group_id, user_id, clock)
    if member is None:
        raise NoMembershipError
    group = member.group
    moment = clock.moment()
    sight = visibility.of_group(connection, group, moment.now)
    timed = None
    if group.self_destructs or group.taken_back_count:
        timed = visibility.of_reader(member.member_id, member.joined_after, include_redacted=include_redacted)
    confirmed = min(after, group.last_seq)
    doubt = fetch_gaps.look(connection, member, sight, moment, timed, confirmed)
    archived = stretches.stretch(connection, group, confirmed, sight, include_redacted=include_redacted)
    if archived:
        return Page([], member, confirmed, sight, archived, touch, doubt=doubt)
    begin = visibility.pass_hidden(connection, group, sight, max(confirmed, group.archived_seq))
    first_timed = _first_timed(connection, group.group_key, begin) if timed else None
    seen_by_one = timed if first_timed else None
    served, count = _served(connection, group, limit, sight, seen_by_one, begin, taken, write)
    last = served[-1].sequence_num if served else 0
    is_last = len(served) == count < limit
    end = group.last_seq if is_last else last
    if first_timed and first_timed <= end:
        # What one reader sees, others do not. And what this reader may not see is not waited for.
        return Page(served, member, max(end, confirmed), sight, None, touch, doubt=doubt)
    return Page(served, member, max(last, confirmed), sight, None, touch, end, doubt)


def written(message: StoredMessage, sight: Sight, write: WriteMessage) -> Piece:
    """Write a message that ``sight`` admits; without its body if it is redacted for the reader."""
    number, sender_id, body, created_at, is_kept, seconds, _ = message
    if not seconds and not sight.is_redacted(message):
        return _for_all(number, sender_id, body, created_at, sight, write, is_kept=is_kept)
    expires_at = 0 if is_kept else sight.policy.expires_at(created_at)
    if sight.is_redacted(message):
        text = write(number, sender_id, b"", created_at, expires_at, seconds, redacted=True)
        return Piece(number, created_at, text, is_kept, is_redacted=True)
    text = write(number, sender_id, body, created_at, expires_at, seconds)
    return Piece(number, created_at, text, is_kept, message.redact_at)


def _first_timed(connection: sqlite3.Connection, group_key: int, after: int) -> int | None:
    """Return the first number greater than ``after`` of a message that is not the same for all readers at all times."""
    found = (each.first_after(connection, group_key, after) for each in (timers, taken_back))
    return min((number for number in found if number is not None), default=None)


def _served(
    connection: sqlite3.Connection,
    group: Group,
    limit: int,
    sight: Sight,
    timed: Timed | None,
    begin: int,
    taken: int,
    write: WriteMessage,
) -> tuple[list[Piece], int]:
    """Write the messages of a page, and return them and how many there are; not those that were erased meanwhile.

    ``timed``: None if no message there destroys itself. Only if all are read, none may be left: an empty page says that
    nothing follows.
    """
    while True:
        if timed:
            found = _timed_rows(connection, group.group_key, limit, sight, timed, begin)
            numbers = [message.sequence_num for _, message in found]
            served, looked = _with_bodies(connection, group, found, sight, write, taken)
        else:
            rows = _rows(connection, group.group_key, limit, sight, begin)
            numbers = [row[0] for row in rows]
            bodies_of = _read_bodies(connection, group, [row[:2] for row in rows], taken)
            looked = len(bodies_of)
            served = _for_all_of(rows, bodies_of, sight, write)
        # Where nothing had room beside what the page has already, it ends: what follows is for the next one.
        if served or not looked or looked == len(numbers) < limit:
            return served, len(numbers)
        begin = numbers[looked - 1]


def _for_all_of(
    rows: Sequence[tuple[int, int, bytes, int, int]],
    bodies_of: list[bytes | None],
    sight: Sight,
    write: WriteMessage,
) -> list[Piece]:
    """Write the first of ``rows``, as far as their bodies go, which are let go of one by one."""
    bodies_of.reverse()
    served = []
    for number, _, sender, created_at, is_kept in rows[: len(bodies_of)]:
        body = bodies_of.pop()
        if body is not None:
            served.append(_for_all(number, sender, body, created_at, sight, write, is_kept=bool(is_kept)))
    return served


def _for_all(
    number: int, sender_id: bytes, body: bytes, created_at: int, sight: Sight, write: WriteMessage, *, is_kept: bool
) -> Piece:
    """Write a message that all readers get in the same form."""
    expires_at = 0 if is_kept else sight.policy.expires_at(created_at)
    return Piece(number, created_at, write(number, sender_id, body, created_at, expires_at), is_kept)


def _rows(
    connection: sqlite3.Connection, group_key: int, limit: int, sight: Sight, after: int
) -> list[tuple[int, int, bytes, int, int]]:
    """Return the messages of a page: number, id of the body, sender, when it was stored, whether it is kept.

    SQLite gives them as one row, see ``bodies.get_small``: each column as one text.
    """
    admitted, is_kept = sight.hot
    *columns, senders = connection.execute(
        "SELECT group_concat(sequence_num), group_concat(message_id), group_concat(created_at),"
        f" group_concat({is_kept}), group_concat(hex(sender_id), '') FROM"
        f" (SELECT * FROM messages WHERE group_key = :group_key AND {admitted} ORDER BY sequence_num LIMIT :limit)",
        {"group_key": group_key, "limit": limit, **sight.bounds(after)},
    ).fetchone()
    if senders is None:
        return []
    numbers, body_ids, times, kept = orjson.loads(f"[[{'],['.join(columns)}]]")
    ids = bytes.fromhex(senders)
    sent_by = [ids[begin : begin + ID_BYTES] for begin in range(0, len(ids), ID_BYTES)]
    return sorted(zip(numbers, body_ids, sent_by, times, kept, strict=True))  # SQLite promises no order of the columns


def _timed_rows(
    connection: sqlite3.Connection, group_key: int, limit: int, sight: Sight, timed: Timed, after: int
) -> list[tuple[int, StoredMessage]]:
    """Return the messages of a page of a group that has self-destructing ones: ids of bodies, messages without them."""
    admitted, is_kept = sight.hot
    found = connection.execute(
        f"SELECT message_id, sequence_num, sender_id, created_at, {is_kept}, ifnull(seconds, 0), redact_at"
        f" FROM ({timed.query}) WHERE group_key = :group_key AND {admitted} AND {timed.condition}"
        " ORDER BY sequence_num LIMIT :limit",
        {"group_key": group_key, "limit": limit, "now": sight.now, **timed.values, **sight.bounds(after)},
    )
    return [
        (body_id, StoredMessage(number, sender, b"", created_at, bool(kept), seconds, redact_at))
        for body_id, number, sender, created_at, kept, seconds, redact_at in found
    ]


def _with_bodies(
    connection: sqlite3.Connection,
    group: Group,
    rows: Sequence[tuple[int, StoredMessage]],
    sight: Sight,
    write: WriteMessage,
    taken: int,
) -> tuple[list[Piece], int]:
    """Write the messages of a page, as many as PAGE_BYTES allows, and tell how many of ``rows`` were looked at.

    Bodies that the reader may not see are not read.
    """
    shown = [(message.sequence_num, body_id) for body_id, message in rows if not sight.is_redacted(message)]
    found = _read_bodies(connection, group, shown, taken) if shown else []
    found.reverse()
    served: list[Piece] = []
    for looked, (_, message) in enumerate(rows):
        if sight.is_redacted(message):
            served.append(written(message, sight, write))
        elif not found:
            return served, looked
        elif (body := found.pop()) is not None:
            served.append(written(message._replace(mls_message=body), sight, write))
    return served, len(rows)


def _read_small(connection: sqlite3.Connection, ids: list[int], most: int) -> dict[int, bytes] | None:
    """Read some bodies, at least one, if they have at most ``most`` bytes together; otherwise return None.

    Those that have more than their part are measured first, which costs as much again.
    """
    found = bodies.get_small(connection, ids, most // len(ids))
    left = [body_id for body_id in ids if body_id not in found]
    if left:
        room = most - sum(map(len, found.values()))
        if bodies.total_size(connection, left) > room:
            return None
        found |= bodies.get_small(connection, left, room)
    return found


def _read_bodies(
    connection: sqlite3.Connection, group: Group, placed: Sequence[tuple[int, int]], taken: int
) -> list[bytes | None]:
    """Read the first of some bodies, as many as PAGE_BYTES allows.

    ``placed``: numbers and ids. None: the message was erased since this snapshot was taken, and its key is lost.
    """
    limit = PAGE_BYTES - taken
    ids = [body_id for _, body_id in placed]
    found = _read_small(connection, ids, limit) if ids else {}
    if found is None:
        ids = bodies.first_within(connection, ids, limit, least=0 if taken else 1)
        found = bodies.get_many(connection, ids)
    stored = [found[body_id] for body_id in ids]
    return at_rest.decrypted(connection, group.group_id, [number for number, _ in placed[: len(ids)]], stored)
