"""What the server knows of its own last run: its policy settings, when it was last alive, and its clock."""

import json
import sqlite3

from conclave.clock import Reading
from conclave.clock_guard import clock_fault
from conclave.policy import PolicySettings, session_lag
from conclave.store import marks


def stored_policy(connection: sqlite3.Connection) -> PolicySettings | None:
    """Return the settings that the server last ran with; None before its first run."""
    row = connection.execute("SELECT policy_settings FROM server_state").fetchone()
    return PolicySettings.from_mapping(json.loads(row[0])) if row else None


class PolicyFrozenError(Exception):
    """The policy must not change now; the message says what to do."""


def begin_serving(connection: sqlite3.Connection, policy: PolicySettings, clock: Reading) -> str:
    """Make ``policy`` the settings in force; return what is wrong with the clock, or nothing.

    Where they differ from those of the last run, every group's marks are settled under the old ones as of
    the second at which the server was last alive. After a crash the sessions that were in use near its end get
    back the extension that was not written yet. Raises PolicyFrozenError.
    """
    row = connection.execute("SELECT last_alive, stopped_cleanly FROM server_state").fetchone()
    former = stored_policy(connection)
    if row is None or former is None:
        connection.execute(
            "INSERT INTO server_state (id, policy_settings, last_alive, stopped_cleanly, clock_wall, clock_since_boot,"
            " clock_boot_id) VALUES (1, ?, ?, 0, ?, ?, ?)",
            (json.dumps(policy.to_mapping()), clock.wall, clock.wall, clock.since_boot, clock.boot_id),
        )
        return ""
    fault = find_clock_fault(connection, clock)
    if fault and former.message_retention != policy.message_retention:
        # No mark moves by a wrong clock, and without that the old policy's end would be forgotten.
        raise PolicyFrozenError(
            f"{fault}: message_retention cannot change until the clock is right and accepted by `conclave cleanup run"
            " --accept-clock`; start with the former setting first"
        )
    # The time of a server that ran under a wrong clock may lie ahead of the right one.
    marks.settle_all(connection, former, policy, min(row["last_alive"], clock.wall))
    if not row["stopped_cleanly"]:
        ttl = former.token_ttl_seconds
        connection.execute(
            "UPDATE sessions SET expires_at = max(expires_at, last_used_at + ?) WHERE expires_at > ?",
            (ttl + session_lag(ttl), row["last_alive"]),
        )
    connection.execute(
        "UPDATE server_state SET policy_settings = ?, stopped_cleanly = 0", (json.dumps(policy.to_mapping()),)
    )
    return fault or still_alive(connection, clock)


def still_alive(connection: sqlite3.Connection, clock: Reading, *, stopping: bool = False) -> str:
    """Note that the server runs; with ``stopping``, that it ends here and has written everything.

    Return what is wrong with the clock, or nothing. A wrong clock is not noted: what is stored stays right.
    """
    fault = known_clock_fault(connection, clock)
    if not fault:
        connection.execute("UPDATE server_state SET last_alive = ?", (clock.wall,))
        _know(connection, clock)
    connection.execute("UPDATE server_state SET stopped_cleanly = ?", (stopping,))
    return fault


def probe(connection: sqlite3.Connection) -> None:
    """Write what is stored already: whether that can be done is all that is asked."""
    connection.execute("UPDATE server_state SET last_alive = last_alive")


def known_clock_fault(connection: sqlite3.Connection, clock: Reading) -> str:
    """Return what is wrong with the clock, or nothing. What was found wrong stays so until it is accepted."""
    return _noted(connection, _clock_fault(connection, clock, newest_stored=0))


def find_clock_fault(connection: sqlite3.Connection, clock: Reading) -> str:
    """As known_clock_fault, with a look at the newest stored message too."""
    return _noted(connection, look_at_clock(connection, clock))


def look_at_clock(connection: sqlite3.Connection, clock: Reading) -> str:
    """As find_clock_fault, but without keeping what is found."""
    accepted = connection.execute("SELECT clock_accepted FROM server_state").fetchone()[0]
    newest = _newest_stored(connection)
    return _clock_fault(connection, clock, newest if newest > accepted else 0)


def _noted(connection: sqlite3.Connection, fault: str) -> str:
    if fault:
        connection.execute("UPDATE server_state SET clock_fault = ?", (fault,))
    return fault


def _clock_fault(connection: sqlite3.Connection, clock: Reading, newest_stored: int) -> str:
    row = connection.execute(
        "SELECT clock_wall, clock_since_boot, clock_boot_id, clock_fault FROM server_state"
    ).fetchone()
    if row["clock_fault"]:
        return str(row["clock_fault"])
    known = Reading(row["clock_wall"], row["clock_since_boot"], row["clock_boot_id"])
    return clock_fault(known, newest_stored, clock)


def accept_clock(connection: sqlite3.Connection, clock: Reading) -> None:
    """Take the clock as right from here on, whatever was found wrong with it."""
    connection.execute(
        "UPDATE server_state SET clock_fault = '', clock_accepted = ?, last_alive = min(last_alive, ?)",
        (_newest_stored(connection), clock.wall),
    )
    _know(connection, clock)


def _know(connection: sqlite3.Connection, clock: Reading) -> None:
    connection.execute(
        "UPDATE server_state SET clock_wall = ?, clock_since_boot = ?, clock_boot_id = ?",
        (clock.wall, clock.since_boot, clock.boot_id),
    )


def _newest_stored(connection: sqlite3.Connection) -> int:
    """Return when the newest message was stored, Unix seconds; one look into an index for each group."""
    newest = connection.execute(
        "SELECT max((SELECT max(created_at) FROM messages WHERE messages.group_key = groups.group_key)) FROM groups"
    ).fetchone()[0]
    return int(newest or 0)
