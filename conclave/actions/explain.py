"""Telling operators what retention does with a group: which policy binds, what is due, what withholds it."""

import sqlite3

from conclave.actions import lookup
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.errors import NotFoundError
from conclave.retention import holds
from conclave.retention.fate import Timer
from conclave.retention.jobs import Scope, schedule
from conclave.retention.resolve import PolicySettings
from conclave.store.resources import receipts, state
from conclave.store.views import explain as store, group_list, overdue, storage_usage
from conclave.store.views.explain import ExplainedMessage, ExplainedWithdrawal, Explanation, LaggingMember, ReadArchived
from conclave.store.views.group_list import GroupSummary

__all__ = [
    "ExplainedMessage",
    "ExplainedWithdrawal",
    "Explanation",
    "GroupSummary",
    "LaggingMember",
    "ReadArchived",
    "SettingsError",
    "Timer",
    "explain",
    "in_force",
    "list_groups",
    "show",
]

_NOTHING_LEFT = "no such group, or nothing is left of it"


class SettingsError(Exception):
    """What is configured is not what is in force. The message is one line for the operator."""


def in_force(connection: sqlite3.Connection, config: Config) -> PolicySettings:
    """Return the settings that the server runs with, as each run does. Raises SettingsError if ``config`` differs."""
    stored = state.stored_policy(connection)
    if stored is None:
        raise SettingsError(f"{config.database}: has not been served yet: start `conclave serve` on it first")
    if differing := stored.differing(config.policy):
        raise SettingsError(
            f"{', '.join(differing)}: this configuration differs from the one that the server last ran with; restart"
            " the server with it first, or use the server's"
        )
    return stored


def _schedule(config: Config) -> list[tuple[Scope, int]]:
    return schedule(config.retention.purge_jobs, config.cleanup_interval)


def explain(
    connection: sqlite3.Connection, config: Config, clock: Clock, group: str, number: int | None, look: ReadArchived
) -> Explanation:
    """Explain a group, named by its id or its name, and one of its messages if ``number`` is given.

    Raises SettingsError or NotFoundError.
    """
    settings = in_force(connection, config)
    fault = state.look_at_clock(connection, clock.read())  # as each run does; what is found is not stored
    group_id = _find(connection, group)
    found = store.explain(connection, settings, _schedule(config), clock.now(), group_id, number, look, fault)
    if found is None:
        erased = receipts.of_group(connection, group_id, 1)
        known = f"; the last receipt of it is number {erased[0].receipt_id}" if erased else ""
        raise NotFoundError(f"{_NOTHING_LEFT}{known}")
    return found


def show(connection: sqlite3.Connection, config: Config, now: int, group: str) -> tuple[GroupSummary, int]:
    """Return what ``list_groups`` has of one group, and the bytes of its bodies in the hot store.

    Raises SettingsError and NotFoundError.
    """
    in_force(connection, config)
    found = holds.group_of(connection, _find(connection, group))
    if found is None:
        raise NotFoundError(_NOTHING_LEFT)
    key = found[0]
    due = overdue.find(connection, now, key, _schedule(config))
    row = group_list.list_all(connection, _schedule(config), now, due, key)[0]
    return row, storage_usage.hot_bytes(connection, key)


def list_groups(
    connection: sqlite3.Connection, config: Config, now: int, like: str = "", *, only_overdue: bool = False
) -> list[GroupSummary]:
    """List the groups whose name or alias contains ``like``, by name. Raises SettingsError."""
    in_force(connection, config)
    due = overdue.find(connection, now, schedule=_schedule(config))
    rows = group_list.list_all(connection, _schedule(config), now, due)
    return [row for row in rows if row.matches(like) and (row.overdue_since is not None or not only_overdue)]


def _find(connection: sqlite3.Connection, group: str) -> bytes:
    group_id = lookup.group_id(connection, group)
    if group_id is None:
        raise NotFoundError(f"no such group: {group!r}; a deleted group has to be named by its id")
    return group_id
