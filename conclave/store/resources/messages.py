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
from conclave.response_memory import Share
from conclave.retention import stretches, visibility
from conclave.retention.policy import FOREVER
from conclave.retention.stretches import Stretch
from conclave.retention.visibility import Sight, Timed
from conclave.store import bodies, invalidation
from conclave.store.engine.sqlite import insert_many
from conclave.store.resources import fetch_gaps, members, timers
from conclave.store.resources.fetch_gaps import Doubt
from conclave.store.resources.members import Membership, NoMembershipError
from conclave.store.resources.users import ID_BYTES

PAGE_BYTES = 32 * 1024 * 1024
"""A page has at most 32 MiB of bodies: hundreds of the largest would fill the memory of a small machine."""


SMALL_BYTES = 1024 * 1024
"""Bodies that have at most 1 MiB together are read at once, and take memory only then."""


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
    body_ids = bodies.put_many(connection, [draft.body or b"" for draft in drafts])
    stored = _append(connection, drafts, body_ids, now)
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
    return _append(connection, [Draft(group_key, sender_id, None, is_commit)], [body_id], now)[0]


def _append(connection: sqlite3.Connection, drafts: Sequence[Draft], body_ids: Sequence[int], now: int) -> list[Stored]:
    """Number the messages of each group in the order of ``drafts``, and store them."""
    ahead: dict[int, tuple[int, int]] = {}
    for group_key, count in Counter(draft.group_key for draft in drafts).items():
        last, expired_before = connection.execute(
            "UPDATE groups SET last_seq = last_seq + ? WHERE group_key = ? RETURNING last_seq, expired_before",
            (count, group_key),
        ).fetchone()
        ahead[group_key] = last - count, max(now, expired_before)
    reach("send.numbered")
    rows, stored = [], []
    for draft, body_id in zip(drafts, body_ids, strict=True):
        former, created_at = ahead[draft.group_key]
        ahead[draft.group_key] = number, _ = former + 1, created_at
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


def page(
    connection: sqlite3.Connection,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    clock: Clock,
    share: Share,
    write: WriteMessage,
    taken: int = 0,
    *,
    include_redacted: bool = False,
) -> Page:
    """Read up to ``limit`` messages with numbers greater than ``after``, none of them expired.

    ``write``: how each is written. ``taken``: how many bytes of bodies the page has already. ``include_redacted``:
    messages that the reader sees only redacted are there too, without their bodies. The page gets fewer
    messages if memory is short, or if all its bodies would have more than PAGE_BYTES; but at least one if ``taken`` is
    0. If the next messages are in the archive, the page has none, and says where they are. Raises NoMembershipError or
    NoRoomError.
    """
    touch = invalidation.last_invalidation(connection)
    member = members.membership(connection, group_id, user_id)
    if member is None:
        raise NoMembershipError
    group = member.group
    moment = clock.moment()
    sight = visibility.of_group(connection, group, moment.now)
    timed = None
    if group.self_destructs:
        timed = visibility.of_reader(member.member_id, member.joined_after, include_redacted=include_redacted)
    confirmed = min(after, group.last_seq)
    doubt = fetch_gaps.look(connection, member, sight, moment, timed, confirmed)
    archived = stretches.stretch(connection, group, confirmed, sight)
    if archived:
        return Page([], member, confirmed, sight, archived, touch, doubt=doubt)
    begin = visibility.pass_hidden(connection, group, sight, max(confirmed, group.archived_seq))
    first_timed = timers.first_after(connection, group.group_key, begin) if timed else None
    if timed and first_timed:
        found = _timed_rows(connection, group.group_key, limit, sight, timed, begin)
        served, count = _with_bodies(connection, found, sight, write, share, taken), len(found)
    else:
        rows = _rows(connection, group.group_key, limit, sight, begin)
        bodies_of = _read_bodies(connection, [row[1] for row in rows], share, taken)
        bodies_of.reverse()  # each body is let go of once it is written
        served = [
            _for_all(number, sender, bodies_of.pop(), created_at, sight, write, is_kept=bool(is_kept))
            for number, _, sender, created_at, is_kept in rows[: len(bodies_of)]
        ]
        count = len(rows)
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
    if not seconds:
        return _for_all(number, sender_id, body, created_at, sight, write, is_kept=is_kept)
    expires_at = 0 if is_kept else sight.policy.expires_at(created_at)
    if sight.is_redacted(message):
        text = write(number, sender_id, b"", created_at, expires_at, seconds, redacted=True)
        return Piece(number, created_at, text, is_kept, is_redacted=True)
    text = write(number, sender_id, body, created_at, expires_at, seconds)
    return Piece(number, created_at, text, is_kept, message.redact_at)


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
    rows: Sequence[tuple[int, StoredMessage]],
    sight: Sight,
    write: WriteMessage,
    share: Share,
    taken: int,
) -> list[Piece]:
    """Write the messages of a page, as many as memory allows. Bodies that the reader may not see are not read."""
    shown = [body_id for body_id, message in rows if not sight.is_redacted(message)]
    found = _read_bodies(connection, shown, share, taken) if shown else []
    found.reverse()
    served = []
    for _, message in rows:
        if not sight.is_redacted(message):
            if not found:
                break
            served.append(written(message._replace(mls_message=found.pop()), sight, write))
        else:
            served.append(written(message, sight, write))
    return served


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


def _read_bodies(connection: sqlite3.Connection, ids: list[int], share: Share, taken: int) -> list[bytes]:
    """Read the first of some bodies, as many as memory and PAGE_BYTES allow. Raises NoRoomError."""
    limit = PAGE_BYTES - taken
    found = _read_small(connection, ids, min(SMALL_BYTES, limit)) if ids else {}
    if found is None or not share.take_all(sum(map(len, found.values())), len(ids)):
        del found
        ids = ids[: share.take_bodies(bodies.sizes(connection, ids), limit, least=0 if taken else 1)]
        found = bodies.get_many(connection, ids)
    return [found[body_id] for body_id in ids]
