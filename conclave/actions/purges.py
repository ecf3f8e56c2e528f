"""Purging a group for an operator: what is older than a time is hidden for ever, and erased by cleanup."""

import sqlite3
from dataclasses import dataclass

from conclave.actions import named
from conclave.actions.context import Context
from conclave.errors import NotFoundError
from conclave.store import audit, groups, marks, purges, state
from conclave.store.news import announce, members_of
from conclave.store.purges import Amount, Sought


@dataclass(frozen=True)
class Planned:
    """What a purge would take: of the hot store ``hot``, and of the archive what ``sought`` finds there."""

    sought: Sought
    hot: Amount


def plan(connection: sqlite3.Connection, context: Context, group: str, before: int) -> Planned:
    """Find out what a purge would take now, by the settings that the server runs with. Raises NotFoundError.

    ``group``: id or name. ``before``: Unix seconds, exclusive.
    """
    group_id = named.group_id(connection, group)
    try:
        found = groups.by_id(connection, group_id or b"")
    except NotFoundError:
        raise NotFoundError(
            f"no such group: {group!r}; a deleted group is hidden already, and goes as a whole"
        ) from None
    settings = state.stored_policy(connection) or context.policy
    sought = purges.seek(connection, found, settings, before, context.now())
    return Planned(sought, purges.count(connection, sought))


def clock_fault(connection: sqlite3.Connection, context: Context) -> str:
    """Return what is wrong with the clock, "" for nothing, and note it where the server looks for it."""
    return state.find_clock_fault(connection, context.clock.read())


def purge(connection: sqlite3.Connection, context: Context, actor: str, group_id: bytes, before: int) -> None:
    """Hide what was created before the Unix second ``before``, for ever. Repeating it changes nothing.

    Members hear that something of the group has changed: what they have of it is to go too.

    ``actor``: an operator, as the audit log names one. ``before`` counts as the present if it lies ahead. Raises
    NotFoundError, and UntrustedClockError if the clock is wrong.
    """
    group = groups.by_id(connection, group_id)
    now = context.now()  # before the clock is looked at: a jump in between must not move a mark
    state.require_clock(connection, context.clock.read())
    before = min(before, now)  # a mark ahead would hide what is yet to come
    marks.hide_before(connection, group.group_key, before)
    subject = audit.Subject(group_id, group.group_name)
    details = {"before": before, "expired_before": [group.expired_before, max(group.expired_before, before)]}
    audit.note(connection, now, actor, audit.Action.GROUP_PURGED, subject, details)
    everybody = members_of(connection, group.group_key)
    announce(connection, everybody, "group_update", group_id=group_id, update_type="group_settings")
