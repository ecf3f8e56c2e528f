"""Purges a group for an operator: messages before a time are hidden for ever, and erased by cleanup."""

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
class PurgePlan:
    """The effect of a purge of a group."""

    group: GroupRow
    impact: GroupImpact
    kept_commits: int
    """How many commits in the hot store are kept because not every member has fetched them."""


def plan(connection: sqlite3.Connection, context: Context, group: str, before: int) -> PurgePlan:
    """Return the effect of a purge under the policy in force. Raises NotFoundError.

    ``group``: id or name. ``before``: Unix seconds, exclusive.
    """
    group_id = lookup.group_id(connection, group)
    found = groups.find(connection, group_id or b"")
    if found is None:
        raise NotFoundError(f"no such group: {group!r}; a deleted group is already hidden, and all of it is erased")
    impact = rehearsal.of_purge(connection, found, before, context.now())
    return PurgePlan(found, impact, rehearsal.kept_of_purge(connection, found, before))


def clock_fault(connection: sqlite3.Connection, context: Context) -> str:
    """Check the clock, store a fault for the server, and return the fault or ""."""
    return state.check_and_record_clock(connection, context.clock.read())


def purge(connection: sqlite3.Connection, context: Context, actor: str, group_id: bytes, before: int) -> None:
    """Hide for ever the messages created before the Unix second ``before``. Idempotent.

    Members are notified that the group has changed, so that clients delete their copies. ``actor``: the operator, for
    the audit log. ``before``: a future time counts as now. Raises NotFoundError, and UntrustedClockError if the clock
    is wrong.
    """
    group = require_group(connection, group_id)
    now = context.now()  # before the clock is checked: a jump in between must not move a mark
    context.require_clock(connection)
    before = min(before, now)  # a mark in the future would hide new messages
    marks.hide_before(connection, group.group_key, before)
    subject = audit.Subject(group_id, group.group_name)
    details = {"before": before, "expired_before": [group.expired_before, max(group.expired_before, before)]}
    audit.note(connection, now, actor, audit.AuditAction.GROUP_PURGED, subject, details)
    recipients = members_of(connection, group.group_key)
    announce(connection, recipients, "group_update", group_id=group_id, update_type="group_settings")
