"""Purging a group for an operator: what is older than a time is hidden for ever, and erased by cleanup."""

import sqlite3
from dataclasses import dataclass

from conclave.actions import lookup
from conclave.actions.authorisation import require_group
from conclave.actions.context import Context
from conclave.errors import NotFoundError
from conclave.retention import marks, rehearsal
from conclave.retention.rehearsal import GroupImpact
from conclave.store.engine.news import announce, members_of
from conclave.store.resources import audit, groups, state
from conclave.store.resources.groups import GroupRow


@dataclass(frozen=True)
class Planned:
    """What a purge would take of a group."""

    group: GroupRow
    rehearsed: GroupImpact
    kept_commits: int
    """How many commits in the hot store stay beside it, since the policy keeps them until every member has them."""


def plan(connection: sqlite3.Connection, context: Context, group: str, before: int) -> Planned:
    """Find out what a purge would take now, by the policy in force. Raises NotFoundError.

    ``group``: id or name. ``before``: Unix seconds, exclusive.
    """
    group_id = lookup.group_id(connection, group)
    found = groups.find(connection, group_id or b"")
    if found is None:
        raise NotFoundError(f"no such group: {group!r}; a deleted group is hidden already, and goes as a whole")
    rehearsed = rehearsal.of_purge(connection, found, before, context.now())
    return Planned(found, rehearsed, rehearsal.kept_of_purge(connection, found, before))


def clock_fault(connection: sqlite3.Connection, context: Context) -> str:
    """Return what is wrong with the clock, "" for nothing, and note it where the server looks for it."""
    return state.find_clock_fault(connection, context.clock.read())


def purge(connection: sqlite3.Connection, context: Context, actor: str, group_id: bytes, before: int) -> None:
    """Hide what was created before the Unix second ``before``, for ever. Repeating it changes nothing.

    Members hear that something of the group has changed: what they have of it is to go too.

    ``actor``: an operator, as the audit log names one. ``before`` counts as the present if it lies ahead. Raises
    NotFoundError, and UntrustedClockError if the clock is wrong.
    """
    group = require_group(connection, group_id)
    now = context.now()  # before the clock is looked at: a jump in between must not move a mark
    context.require_clock(connection)
    before = min(before, now)  # a mark ahead would hide what is yet to come
    marks.hide_before(connection, group.group_key, before)
    subject = audit.Subject(group_id, group.group_name)
    details = {"before": before, "expired_before": [group.expired_before, max(group.expired_before, before)]}
    audit.note(connection, now, actor, audit.AuditAction.GROUP_PURGED, subject, details)
    recipients = members_of(connection, group.group_key)
    announce(connection, recipients, "group_update", group_id=group_id, update_type="group_settings")
