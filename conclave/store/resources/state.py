"""The server's state: its policy settings, when it last ran, and its clock."""

import json
import sqlite3
from dataclasses import dataclass, field, replace

from conclave.clock import Reading
from conclave.clock.guard import clock_fault, effective_time
from conclave.clock.steady import Floor
from conclave.retention import marks, rehearsal
from conclave.retention.policy import LAST_SECOND, session_lag
from conclave.retention.rehearsal import SettingsImpact
from conclave.retention.resolve import PolicySettings
from conclave.store.resources import audit


@dataclass(frozen=True)
class ClockState:
    """The stored state of the clock.

    ``fault``: a description of its fault, "" if there is none. ``floor``: the time that the clock must not fall below.
    """

    fault: str = ""
    floor: Floor = field(default_factory=Floor)


def clock_state(connection: sqlite3.Connection) -> ClockState:
    """Return the stored state of the clock; an empty ClockState before the server's first start."""
    row = connection.execute("SELECT clock_fault, acted_until, clock_acceptances FROM server_state").fetchone()
    return ClockState(row[0], Floor(row[1], row[2])) if row else ClockState()


def stored_policy(connection: sqlite3.Connection) -> PolicySettings | None:
    """Return the settings with which the server last ran; None before its first start."""
    text = stored_text(connection)
    return PolicySettings.from_mapping(json.loads(text)) if text is not None else None


def stored_text(connection: sqlite3.Connection) -> str | None:
    """Return the JSON of ``stored_policy``, whose parsing takes 6 ms with 1,000 overrides."""
    row = connection.execute("SELECT policy_settings FROM server_state").fetchone()
    return row[0] if row else None


class PolicyFrozenError(Exception):
    """The policy must not change while the clock is wrong. The message says what to do."""


class PolicyChangeError(Exception):
    """The policy would hide so much that an operator has to confirm it. The message says how."""


@dataclass(frozen=True)
class StartResult:
    """The result of the server's start.

    ``former``: the settings with which it last ran, None before its first start. ``change``: the effect of the new
    ones. ``clock_fault``: the fault of the clock, "" if there is none.
    """

    former: PolicySettings | None = None
    change: SettingsImpact = field(default_factory=SettingsImpact)
    clock_fault: str = ""


def begin_serving(
    connection: sqlite3.Connection, policy: PolicySettings, clock: Reading, *, accepts_change: bool = False
) -> StartResult:
    """Make ``policy`` the settings in force.

    If the settings have changed since the server last ran, every group's marks are settled under the old ones, as of
    the last second at which the server ran or a cleanup run acted. After a crash, sessions that were used shortly
    before it are extended, since their last use was not stored. ``accepts_change``: an operator confirms a large
    change. Raises PolicyFrozenError and PolicyChangeError; the transaction then rolls back.
    """
    row = connection.execute("SELECT last_alive, stopped_cleanly FROM server_state").fetchone()
    former = stored_policy(connection)
    if row is None or former is None:
        connection.execute(
            "INSERT INTO server_state (id, policy_settings, last_alive, stopped_cleanly, clock_wall, clock_since_boot,"
            " clock_boot_id, acted_until) VALUES (1, ?1, ?2, 0, ?2, ?3, ?4, ?2)",
            (json.dumps(policy.to_mapping()), clock.wall, clock.since_boot, clock.boot_id),
        )
        marks.write(connection, policy)
        return StartResult()
    result = _adopt(connection, former, policy, clock, accepts_change=accepts_change)
    if not row["stopped_cleanly"]:
        ttl = former.token_ttl_seconds
        connection.execute(
            "UPDATE sessions SET expires_at = max(expires_at, min(?, last_used_at + ?)) WHERE expires_at > ?",
            (LAST_SECOND, ttl + session_lag(ttl), row["last_alive"]),
        )
    connection.execute("UPDATE server_state SET stopped_cleanly = 0")
    return replace(result, clock_fault=result.clock_fault or note_alive(connection, clock).fault)


def _adopt(
    connection: sqlite3.Connection,
    former: PolicySettings,
    policy: PolicySettings,
    clock: Reading,
    *,
    accepts_change: bool,
) -> StartResult:
    """Settle the marks under the ``former`` settings, and store ``policy``. Raises the errors of ``begin_serving``."""
    fault = check_and_record_clock(connection, clock)
    _require_right_clock(former, policy, fault)
    last_second = _last_in_force(connection)
    change = rehearsal.settle(connection, former, policy, last_second, effective_time(clock.wall, last_second))
    if not accepts_change:
        _require_small(former, policy, change)
    if changed_settings := policy.changes(former):
        acceptance = {"accepted": True, "hides": change.hidden} if change.is_large else {}
        details = {"changed": changed_settings, **acceptance}
        audit.note(connection, clock.wall, audit.SERVER, audit.AuditAction.SETTINGS_CHANGED, details=details)
    connection.execute("UPDATE server_state SET policy_settings = ?", (json.dumps(policy.to_mapping()),))
    return StartResult(former, change, fault)


def require_change_allowed(connection: sqlite3.Connection, policy: PolicySettings, clock: Reading) -> None:
    """Raise PolicyFrozenError or PolicyChangeError if ``begin_serving`` would. Writes nothing.

    The connection must not be used afterwards, see ``rehearsal.rehearse``.
    """
    former = stored_policy(connection)
    if former is None or former == policy:
        return
    _require_right_clock(former, policy, check_clock(connection, clock))
    now = effective_time(clock.wall, _last_in_force(connection))
    _require_small(former, policy, rehearsal.rehearse(connection, former, policy, now))


def _last_in_force(connection: sqlite3.Connection) -> int:
    """Return the last Unix second at which the stored policy was in force.

    A cleanup run that was started by hand may have acted on it after the server last ran.
    """
    return int(connection.execute("SELECT max(last_alive, acted_until) FROM server_state").fetchone()[0])


def _require_right_clock(former: PolicySettings, policy: PolicySettings, fault: str) -> None:
    if fault and not policy.hides_as(former):
        # A wrong clock must not move marks; without marks, messages hidden by the old policy would reappear.
        raise PolicyFrozenError(
            f"{fault}: {', '.join(policy.differing(former))} cannot change until the clock is right and accepted by"
            " `conclave cleanup run --accept-clock`; start with the former settings first"
        )


def _require_small(former: PolicySettings, policy: PolicySettings, change: SettingsImpact) -> None:
    if change.is_large:
        raise PolicyChangeError(_refusal(policy.differing(former), change))


def _refusal(settings: list[str], change: SettingsImpact) -> str:
    groups = "1 group" if change.hiding == 1 else f"{change.hiding:,} groups"
    archived = f"{'' if change.is_exact else 'up to '}{change.archived:,} in the archive"
    return (
        f"{', '.join(settings)}: this change would hide {change.hidden:,} of {change.total:,} messages at once"
        f" ({change.messages:,} in the database, {archived}) in {groups}; `conclave check-config` tells more;"
        " to do it, start once with `conclave serve --accept-policy-change`"
    )


def note_alive(
    connection: sqlite3.Connection, clock: Reading, floor: Floor | None = None, *, stopping: bool = False
) -> ClockState:
    """Record that the server is running, and return the state of the clock.

    ``floor``: the floor of the server's clock. ``stopping``: the server is ending, and has written everything. The
    reading of a wrong clock is not stored.
    """
    stored_floor = clock_state(connection).floor
    acted_until = stored_floor.acted_until
    if floor and floor.acceptances == stored_floor.acceptances:
        acted_until = max(acted_until, floor.acted_until)
    fault = _record_fault(connection, check_clock_quickly(connection, clock, acted_until))
    if not fault:
        connection.execute("UPDATE server_state SET last_alive = ?1, acted_until = ?1", (max(acted_until, clock.wall),))
        _store_reading(connection, clock)
    connection.execute("UPDATE server_state SET stopped_cleanly = ?", (stopping,))
    return clock_state(connection)


def begin_run(connection: sqlite3.Connection, clock: Reading) -> ClockState:
    """Record that a cleanup run acts on the clock, unless it is wrong; return the state of the clock."""
    if not check_and_record_clock(connection, clock):
        connection.execute("UPDATE server_state SET acted_until = max(acted_until, ?)", (clock.wall,))
    return clock_state(connection)


def latest_acted_on(connection: sqlite3.Connection, clock: Reading) -> int | None:
    """Return the greatest time that was acted on, Unix seconds, if the clock is wrong; otherwise None."""
    return clock_state(connection).floor.acted_until if check_clock_quickly(connection, clock) else None


def note_clock_fault(connection: sqlite3.Connection, fault: str, acceptances: int) -> None:
    """Store a clock fault, unless one is stored already.

    ``acceptances``: how often the clock had been accepted at the time of the check. Nothing is stored if it was
    accepted since.
    """
    connection.execute(
        "UPDATE server_state SET clock_fault = ? WHERE clock_fault = '' AND clock_acceptances = ?", (fault, acceptances)
    )


def probe(connection: sqlite3.Connection) -> None:
    """Write without changing anything, to check whether the disk is writable."""
    connection.execute("UPDATE server_state SET last_alive = last_alive")


def check_and_record_clock(connection: sqlite3.Connection, clock: Reading) -> str:
    """Return the fault of the clock, "" if there is none, and store it. A stored fault stays until it is accepted.

    Also compares the clock with the newest stored message.
    """
    return _record_fault(connection, check_clock(connection, clock))


def check_clock(connection: sqlite3.Connection, clock: Reading) -> str:
    """Return the same as ``check_and_record_clock``, without storing the fault."""
    return check_clock_quickly(connection, clock, _newest_stored(connection))


def _record_fault(connection: sqlite3.Connection, fault: str) -> str:
    if fault:
        connection.execute("UPDATE server_state SET clock_fault = ?", (fault,))
    return fault


def check_clock_quickly(connection: sqlite3.Connection, clock: Reading, acted_until: int = 0) -> str:
    """Return the fault of the clock, "" if there is none, without comparing it with messages. Writes nothing.

    ``acted_until``: a time that was acted on and is not stored yet, Unix seconds.
    """
    row = connection.execute(
        "SELECT clock_wall, clock_since_boot, clock_boot_id, clock_fault, acted_until FROM server_state"
    ).fetchone()
    if row["clock_fault"]:
        return str(row["clock_fault"])
    last_correct = Reading(row["clock_wall"], row["clock_since_boot"], row["clock_boot_id"])
    return clock_fault(last_correct, max(acted_until, row["acted_until"]), clock)


def accept_clock(connection: sqlite3.Connection, clock: Reading) -> None:
    """Accept the clock: clear its fault, and lower the times that were acted on.

    The caller has corrected all future times. A running server notices it within a second.
    """
    connection.execute(
        "UPDATE server_state SET acted_until = ?1, last_alive = min(last_alive, ?1),"
        " too_old_before = min(too_old_before, ?1), clock_acceptances = clock_acceptances + 1, clock_fault = ''",
        (clock.wall,),
    )
    _store_reading(connection, clock)


def _store_reading(connection: sqlite3.Connection, clock: Reading) -> None:
    connection.execute(
        "UPDATE server_state SET clock_wall = ?, clock_since_boot = ?, clock_boot_id = ?",
        (clock.wall, clock.since_boot, clock.boot_id),
    )


def _newest_stored(connection: sqlite3.Connection) -> int:
    """Return when the newest message was stored, Unix seconds; 0 if there is none. One index lookup for each group."""
    newest = connection.execute(
        "SELECT max((SELECT max(created_at) FROM messages WHERE messages.group_key = groups.group_key)) FROM groups"
    ).fetchone()[0]
    return int(newest or 0)
