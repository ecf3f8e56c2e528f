"""What the server knows of its own last run: its policy settings, when it was last alive, and its clock."""

import json
import sqlite3
from dataclasses import dataclass, field

from conclave.clock import Reading
from conclave.errors import UntrustedClockError
from conclave.retention.clock_guard import clock_fault
from conclave.retention.policy import PolicySettings, session_lag
from conclave.steady_clock import Floor
from conclave.store import marks

BEING_ACCEPTED = "the clock is being accepted, and times that lie ahead of it are being brought back"


@dataclass(frozen=True)
class Standing:
    """What the store knows of the clock: what is wrong with it, or nothing, and the time not to fall below."""

    fault: str = ""
    floor: Floor = field(default_factory=Floor)


def standing(connection: sqlite3.Connection) -> Standing:
    """Return what is known of the clock, without a look at it; an empty one before the server's first run."""
    row = connection.execute("SELECT clock_fault, acted_until, clock_acceptances FROM server_state").fetchone()
    return Standing(row[0], Floor(row[1], row[2])) if row else Standing()


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
    row = connection.execute("SELECT last_alive, acted_until, stopped_cleanly FROM server_state").fetchone()
    former = stored_policy(connection)
    if row is None or former is None:
        connection.execute(
            "INSERT INTO server_state (id, policy_settings, last_alive, stopped_cleanly, clock_wall, clock_since_boot,"
            " clock_boot_id, acted_until) VALUES (1, ?1, ?2, 0, ?2, ?3, ?4, ?2)",
            (json.dumps(policy.to_mapping()), clock.wall, clock.since_boot, clock.boot_id),
        )
        return ""
    fault = find_clock_fault(connection, clock)
    if fault and former.message_retention != policy.message_retention:
        # No mark moves by a wrong clock, and without that the old policy's end would be forgotten.
        raise PolicyFrozenError(
            f"{fault}: message_retention cannot change until the clock is right and accepted by `conclave cleanup run"
            " --accept-clock`; start with the former setting first"
        )
    # A run by hand may have acted on the old settings after that.
    marks.settle_all(connection, former, policy, max(row["last_alive"], row["acted_until"]))
    if not row["stopped_cleanly"]:
        ttl = former.token_ttl_seconds
        connection.execute(
            "UPDATE sessions SET expires_at = max(expires_at, last_used_at + ?) WHERE expires_at > ?",
            (ttl + session_lag(ttl), row["last_alive"]),
        )
    connection.execute(
        "UPDATE server_state SET policy_settings = ?, stopped_cleanly = 0", (json.dumps(policy.to_mapping()),)
    )
    return fault or still_alive(connection, clock).fault


def still_alive(
    connection: sqlite3.Connection, clock: Reading, floor: Floor | None = None, *, stopping: bool = False
) -> Standing:
    """Note that the server runs; with ``stopping``, that it ends here and has written everything.

    ``floor``: what its time has not fallen below. Return what is known of the clock now. A wrong clock is not noted:
    what is stored stays right.
    """
    stored = standing(connection).floor
    acted_until = stored.acted_until
    if floor and floor.acceptances == stored.acceptances:
        acted_until = max(acted_until, floor.acted_until)
    fault = _noted(connection, _clock_fault(connection, clock, acted_until))
    if not fault:
        connection.execute("UPDATE server_state SET last_alive = ?1, acted_until = ?1", (max(acted_until, clock.wall),))
        _know(connection, clock)
    connection.execute("UPDATE server_state SET stopped_cleanly = ?", (stopping,))
    return standing(connection)


def begin_run(connection: sqlite3.Connection, clock: Reading) -> Standing:
    """Note that a cleanup run acts on the clock from here on, if nothing is wrong with it; return what is known."""
    if not find_clock_fault(connection, clock):
        connection.execute("UPDATE server_state SET acted_until = max(acted_until, ?)", (clock.wall,))
    return standing(connection)


def require_clock(connection: sqlite3.Connection, clock: Reading) -> None:
    """Raise UntrustedClockError if anything is wrong with the clock, which somebody has to note then."""
    fault = known_clock_fault(connection, clock)
    if fault:
        raise UntrustedClockError(fault)


def note_clock_fault(connection: sqlite3.Connection, fault: str, acceptances: int) -> None:
    """Keep what was found wrong with the clock, unless something is known or it was accepted since."""
    connection.execute(
        "UPDATE server_state SET clock_fault = ? WHERE clock_fault = '' AND clock_acceptances = ?", (fault, acceptances)
    )


def probe(connection: sqlite3.Connection) -> None:
    """Write what is stored already: whether that can be done is all that is asked."""
    connection.execute("UPDATE server_state SET last_alive = last_alive")


def known_clock_fault(connection: sqlite3.Connection, clock: Reading) -> str:
    """Return what is wrong with the clock, or nothing. What was found wrong stays so until it is accepted."""
    return _noted(connection, _clock_fault(connection, clock))


def find_clock_fault(connection: sqlite3.Connection, clock: Reading) -> str:
    """As known_clock_fault, with a look at the newest stored message too."""
    return _noted(connection, look_at_clock(connection, clock))


def look_at_clock(connection: sqlite3.Connection, clock: Reading) -> str:
    """As find_clock_fault, but without keeping what is found."""
    return _clock_fault(connection, clock, _newest_stored(connection))


def _noted(connection: sqlite3.Connection, fault: str) -> str:
    if fault:
        connection.execute("UPDATE server_state SET clock_fault = ?", (fault,))
    return fault


def _clock_fault(connection: sqlite3.Connection, clock: Reading, acted_until: int = 0) -> str:
    row = connection.execute(
        "SELECT clock_wall, clock_since_boot, clock_boot_id, clock_fault, acted_until FROM server_state"
    ).fetchone()
    if row["clock_fault"]:
        return str(row["clock_fault"])
    known = Reading(row["clock_wall"], row["clock_since_boot"], row["clock_boot_id"])
    return clock_fault(known, max(acted_until, row["acted_until"]), clock)


def begin_accepting(connection: sqlite3.Connection, clock: Reading) -> Standing:
    """Go by the clock as it is from here on, and trust it no more than before until ``accept_clock``.

    What was acted on ahead of it counts no more. A server that runs learns of it within a second.
    """
    connection.execute(
        "UPDATE server_state SET acted_until = ?1, last_alive = min(last_alive, ?1),"
        " clock_acceptances = clock_acceptances + 1, clock_fault = iif(clock_fault = '', ?2, clock_fault)",
        (clock.wall, BEING_ACCEPTED),
    )
    return standing(connection)


def accept_clock(connection: sqlite3.Connection, clock: Reading) -> None:
    """Take the clock as right, whatever was found wrong with it: nothing that is stored lies ahead of it any more."""
    connection.execute("UPDATE server_state SET clock_fault = ''")
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
