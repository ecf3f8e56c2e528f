"""Explains retention of a group to operators: its policy, its due messages, and the causes of delays."""

import sqlite3

from conclave.actions import lookup
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.errors import NotFoundError
from conclave.retention import holds
from conclave.retention.jobs import Scope, schedule
from conclave.retention.resolve import PolicySettings
from conclave.store.resources import receipts, state
from conclave.store.views import explain as store, group_list, overdue, storage_usage
from conclave.store.views.explain import Explanation, ReadArchived
from conclave.store.views.group_list import GroupSummary

_NOTHING_LEFT = "no such group, or all of it is erased"


class SettingsError(Exception):
    """The configuration differs from the settings in force. The message is one line for the operator."""


def in_force(connection: sqlite3.Connection, config: Config) -> PolicySettings:
    """Return the settings that the server and runs use. Raises SettingsError if ``config`` differs."""
    stored = state.stored_policy(connection)
    if stored is None:
        raise SettingsError(f"{config.database}: has not been used by a server yet: start `conclave serve` first")
    if differing := stored.differing(config.policy):
        raise SettingsError(
            f"{', '.join(differing)}: this configuration differs from the one that the server last ran with; restart"
            " the server with it, or use the server's configuration"
        )
    return stored


def _schedule(config: Config) -> list[tuple[Scope, int]]:
    return schedule(config.retention.purge_jobs, config.cleanup_interval)


def explain(
    connection: sqlite3.Connection, config: Config, clock: Clock, group: str, number: int | None, look: ReadArchived
) -> Explanation:
    """Explain a group, by id or name, and the message ``number`` if given. Raises SettingsError or NotFoundError."""
    settings = in_force(connection, config)
    fault = state.check_clock(connection, clock.read())  # like a run, but without storing the result
    group_id = _find(connection, group)
    found = store.explain(connection, settings, _schedule(config), clock.now(), group_id, number, look, fault)
    if found is None:
        last_receipts = receipts.of_group(connection, group_id, 1)
        detail = f"; its last receipt is number {last_receipts[0].receipt_id}" if last_receipts else ""
        raise NotFoundError(f"{_NOTHING_LEFT}{detail}")
    return found


def show(connection: sqlite3.Connection, config: Config, now: int, group: str) -> tuple[GroupSummary, int]:
    """Return the row of one group, and the bytes of its bodies in the hot store.

    Raises SettingsError or NotFoundError.
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
    """Return the groups whose name or alias contains ``like``, ordered by name. Raises SettingsError."""
    in_force(connection, config)
    due = overdue.find(connection, now, schedule=_schedule(config))
    rows = group_list.list_all(connection, _schedule(config), now, due)
    return [row for row in rows if row.matches(like) and (row.overdue_since is not None or not only_overdue)]


def _find(connection: sqlite3.Connection, group: str) -> bytes:
    group_id = lookup.group_id(connection, group)
    if group_id is None:
        raise NotFoundError(f"no such group: {group!r}; use the id for a deleted group")
    return group_id
