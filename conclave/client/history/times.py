"""Stores the server's time in the history's file for the next start."""

import sqlite3

from conclave.client.history.server_clock import Anchor, ServerClock, UnconfirmedTime
from conclave.clock import Reading

SAVE_INTERVAL_SECONDS = 60
"""Seconds between two writes of the server's time, unless a clock was set."""


def load_clock(connection: sqlite3.Connection) -> tuple[Anchor | None, UnconfirmedTime | None]:
    """Return the last accepted time and the unconfirmed one."""
    row = connection.execute("SELECT server, wall, since_boot, boot_id FROM about").fetchone()
    doubt_row = connection.execute("SELECT answers, server, wall, since_boot, boot_id FROM doubt").fetchone()
    anchor = Anchor(row[0], Reading(*row[1:])) if row and row[0] is not None else None
    return anchor, doubt_row and UnconfirmedTime(Anchor(doubt_row[1], Reading(*doubt_row[2:])), doubt_row[0])


class SavedClock:
    """The stored state of a clock, which is written only when it has changed."""

    def __init__(self) -> None:
        self._anchor: Anchor | None = None
        self._unconfirmed: UnconfirmedTime | None = None

    def differs_from(self, clock: ServerClock) -> bool:
        """Return whether a clock differs from the stored state."""
        anchor = clock.anchor
        is_new = anchor is not None and (self._anchor is None or _differs(self._anchor, anchor))
        return is_new or clock.unconfirmed != self._unconfirmed

    def write(self, connection: sqlite3.Connection, clock: ServerClock) -> None:
        """Store the state of a clock, within the caller's transaction."""
        self._anchor, self._unconfirmed = clock.anchor, clock.unconfirmed
        if clock.anchor:
            connection.execute(
                "UPDATE about SET server = ?, wall = ?, since_boot = ?, boot_id = ?", _values(clock.anchor)
            )
        connection.execute("DELETE FROM doubt")
        if clock.unconfirmed:
            values = (clock.unconfirmed.answers, *_values(clock.unconfirmed.anchor))
            connection.execute("INSERT INTO doubt VALUES (1, ?, ?, ?, ?, ?)", values)


def shift_forward(connection: sqlite3.Connection, seconds: int, former: int) -> None:
    """Correct times after the accepted time ``former`` was ``seconds`` behind: remaining lifetimes stay the same."""
    connection.execute(
        "UPDATE messages SET arrived_at = arrived_at + iif(arrived_at <= ?2, ?1, 0),"
        " redact_at = redact_at + iif(redact_at <= ?2 + self_destruct_seconds, ?1, 0)",
        (seconds, former),
    )


def shift_back(connection: sqlite3.Connection, seconds: int, now: int) -> None:
    """Correct times that were recorded while the clock was ``seconds`` ahead of ``now``: move them back.

    They are recognized because they are impossible: a creation after ``now``, or a timer with more than its whole
    duration left.
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
    """Return whether an anchor differs from the stored one, beyond the rounding of the server's seconds."""
    elapsed = anchor.at.wall - former.at.wall
    is_clock_set = abs(anchor.server - former.server - elapsed) > 1 or anchor.at.boot_id != former.at.boot_id
    return is_clock_set or not 0 <= elapsed < SAVE_INTERVAL_SECONDS
