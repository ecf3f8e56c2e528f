"""Takes messages back: they are redacted for everyone at once, and erased by a later run."""

import sqlite3
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from conclave.actions import quotas
from conclave.actions.authorisation import require_member
from conclave.actions.context import Context
from conclave.archive.reader import Archive
from conclave.clock import Moment
from conclave.errors import BadRequestError, ClockInDoubtError, NotFoundError, NotSenderError
from conclave.retention import rules, stretches, visibility
from conclave.retention.fate import MessageFacts
from conclave.retention.policy import FOREVER
from conclave.retention.rules import DELETED_SENDERS
from conclave.retention.stretches import Stretch
from conclave.store.engine.database import Database
from conclave.store.resources import audit, messages, taken_back, users
from conclave.store.resources.audit import AuditAction, Subject
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import Membership
from conclave.store.resources.taken_back import TakenBack


class TakeBackRequest(NamedTuple):
    """A user's request to take a message back.

    ``admins_may``: whether admins may take back messages of others. ``dry_run``: only check, change nothing.
    """

    group_id: bytes
    user_id: bytes
    number: int
    admins_may: bool
    dry_run: bool = False


class _Located(NamedTuple):
    """A message in the hot store, or its location in the archive. Both None: it does not exist."""

    facts: MessageFacts | None
    archived: Stretch | None


class Withdrawals:
    """Takes messages back, in the hot store and in the archive."""

    def __init__(self, store: Database, archive: Archive, context: Context) -> None:
        """``context``: its clock decides which messages are visible."""
        self._store = store
        self._archive = archive
        self._context = context

    async def take_back(self, request: TakeBackRequest) -> None:
        """Take a message back, and return once that is durable. Idempotent.

        Raises NotMemberError, NotFoundError for a message that the user cannot see, NotSenderError, BadRequestError for
        a commit or if the group has too many withdrawals, TooManyRequestsError, ClockInDoubtError, ArchiveError or
        StoreError.
        """
        while True:
            located = await self._store.read(_locate, self._context, request)
            facts = located.facts
            if located.archived:
                facts = await self._archive.find(located.archived)
                if await self._store.read(stretches.relaid) != located.archived.relaid:
                    continue  # the message may have moved to the hot store before the archive was read
            # The message may have moved between the tiers, but its facts do not change.
            in_database = self._store.read if request.dry_run else self._store.write
            await in_database(take_back, self._context, request, facts)
            return


def _locate(connection: sqlite3.Connection, context: Context, request: TakeBackRequest) -> _Located:
    group = require_member(connection, context, request.group_id, request.user_id).group
    if request.number > group.archived_seq:
        return _Located(messages.find_sent(connection, group.group_key, request.number), None)
    view = visibility.of_group(connection, group, context.clock.moment().earliest)
    found = stretches.stretch(connection, group, request.number - 1, view, include_redacted=True)
    parts = [part for part in found.parts if part.first_seq <= request.number] if found else []
    if not (found and parts):
        return _Located(None, None)
    return _Located(None, replace(found, after=request.number - 1, border=request.number, parts=parts))


def take_back(
    connection: sqlite3.Connection, context: Context, request: TakeBackRequest, facts: MessageFacts | None
) -> None:
    """Take a message back. ``facts``: None if the message does not exist.

    Raises the errors of ``Withdrawals.take_back``.
    """
    member = require_member(connection, context, request.group_id, request.user_id)
    group, now = member.group, context.now()
    former = taken_back.find(connection, group.group_key, request.number)
    is_stored = facts is not None and taken_back.is_stored(connection, group.group_key, request.number)
    if former and former.taken_by == request.user_id and (former.is_erased or not is_stored):
        return
    if facts is None or not is_stored:
        raise NotFoundError("no such message")
    _require_seen(connection, group, request.number, facts, context.clock.moment())
    is_own = facts.sender_id == request.user_id
    if not is_own and not (request.admins_may and member.role == "admin"):
        raise NotSenderError
    if facts.is_commit:
        raise BadRequestError("a commit cannot be taken back: other members need it")
    if former:
        return
    if group.taken_back_count >= taken_back.MAX_PER_GROUP:
        raise BadRequestError("the group has too many messages that were taken back: wait until some are erased")
    if request.dry_run:
        return
    quotas.count_change(context.quotas, request.user_id)
    taken_back.add(connection, group.group_key, request.number, TakenBack(now, request.user_id))
    _note(connection, member, request.number, facts, now)


def _require_seen(
    connection: sqlite3.Connection, group: GroupRow, number: int, facts: MessageFacts, moment: Moment
) -> None:
    """Raise NotFoundError unless members may see the message, possibly redacted.

    Raises ClockInDoubtError if only a clock in doubt hides it.
    """
    by_deleted = (
        not facts.is_commit
        and connection.execute(f"SELECT 1 WHERE ? IN ({DELETED_SENDERS})", (facts.sender_id,)).fetchone()
    )
    view = visibility.of_group(connection, group, moment.now)
    is_kept = facts.is_commit and rules.keeps_commit(connection, group.group_key, number)
    message = messages.MessageRow(number, facts.sender_id, b"", facts.created_at, is_kept, redact_at=FOREVER)
    if by_deleted or not view.at(moment.earliest).admits(message):
        raise NotFoundError("no such message")
    if not view.admits(message):
        raise ClockInDoubtError


def _note(connection: sqlite3.Connection, member: Membership, number: int, facts: MessageFacts, now: int) -> None:
    """Record the withdrawal in the audit log."""
    is_own, user = facts.sender_id == member.user_id, users.find(connection, member.user_id)
    details = {"sequence_num": number, "sender_id": str(UUID(bytes=facts.sender_id))}
    if not is_own:
        details["admin_id"] = str(UUID(bytes=member.user_id))
    actor = f"{'user' if is_own else 'admin'} {user.username if user else ''}"
    subject = Subject(member.group.group_id, member.group.group_name)
    audit.note(connection, now, actor, AuditAction.MESSAGE_TAKEN_BACK, subject, details)
