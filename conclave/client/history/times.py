"""Keeps in the history's file what the next start has to know of the server's time."""

import sqlite3

from conclave.client.history.server_clock import Anchor, ServerClock, UnconfirmedTime
from conclave.clock import Reading

NOTED_SECONDS = 60
"""The server's time is written to the file once a minute, since each answer tells it; earlier if a clock was set."""


def load_clock(connection: sqlite3.Connection) -> tuple[Anchor | None, UnconfirmedTime | None]:
    """Return the time that was believed last, and one that was in doubt."""
    row = connection.execute("SELECT server, wall, since_boot, boot_id FROM about").fetchone()
    doubted = connection.execute("SELECT answers, server, wall, since_boot, boot_id FROM doubt").fetchone()
    anchor = Anchor(row[0], Reading(*row[1:])) if row and row[0] is not None else None
    return anchor, doubted and UnconfirmedTime(Anchor(doubted[1], Reading(*doubted[2:])), doubted[0])


class SavedClock:
    """What is written down of a clock, so that it is written again only when it says something else."""

    def __init__(self) -> None:
        self._anchor: Anchor | None = None
        self._doubt: UnconfirmedTime | None = None

    def differ_from(self, clock: ServerClock) -> bool:
        """Tell whether a clock says more than what is written down."""
        anchor = clock.anchor
        is_new = anchor is not None and (self._anchor is None or _differs(self._anchor, anchor))
        return is_new or clock.doubt != self._doubt

    def write(self, connection: sqlite3.Connection, clock: ServerClock) -> None:
        """Write down what a clock says, within a transaction of the caller's."""
        self._anchor, self._doubt = clock.anchor, clock.doubt
        if clock.anchor:
            connection.execute(
                "UPDATE about SET server = ?, wall = ?, since_boot = ?, boot_id = ?", _values(clock.anchor)
            )
        connection.execute("DELETE FROM doubt")
        if clock.doubt:
            values = (clock.doubt.answers, *_values(clock.doubt.anchor))
            connection.execute("INSERT INTO doubt VALUES (1, ?, ?, ?, ?, ?)", values)


def shift_forward(connection: sqlite3.Connection, seconds: int, former: int) -> None:
    """The time that was believed, ``former``, was ``seconds`` behind: what began by it has as much left as it had."""
    connection.execute(
        "UPDATE messages SET arrived_at = arrived_at + iif(arrived_at <= ?2, ?1, 0),"
        " redact_at = redact_at + iif(redact_at <= ?2 + self_destruct_seconds, ?1, 0)",
        (seconds, former),
    )


def shift_back(connection: sqlite3.Connection, seconds: int, now: int) -> None:
    """It is ``now``, and was taken for ``seconds`` more: what came by that was created, and ends, as much earlier.

    It is known by what cannot be: nothing was created later than now, and no timer has more left than its whole.
    """
    connection.execute(
        "UPDATE messages SET created_at = iif(created_at > ?2, min(created_at - ?1, ?2), created_at),"
        " arrived_at = iif(arrived_at > ?2, min(arrived_at - ?1, ?2), arrived_at),"
        " redact_at = iif(redact_at > ?2 + self_destruct_seconds,"
        " min(redact_at - ?1, ?2 + self_destruct_seconds), redact_at)",
        (seconds, now),
    )


def _values(anchor: Anchor) -> tuple[int, int, int, str]:
    return anchor.server, anchor.at.wall, anchor.at.since_boot, anchor.at.boot_id


def _differs(former: Anchor, anchor: Anchor) -> bool:
    """Tell whether an anchor says more than the one that is noted. The server's seconds are rounded."""
    passed = anchor.at.wall - former.at.wall
    was_set = abs(anchor.server - former.server - passed) > 1 or anchor.at.boot_id != former.at.boot_id
    return was_set or not 0 <= passed < NOTED_SECONDS
