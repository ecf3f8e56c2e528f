"""Taking a message back: it is redacted for everybody at once, and erased by the next run that may."""

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
from conclave.retention import limits, stretches, visibility
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


class Wish(NamedTuple):
    """That a user wants a message taken back. ``admins_may``: whether admins may do so with what others have sent.

    ``dry_run``: nothing is to change.
    """

    group_id: bytes
    user_id: bytes
    number: int
    admins_may: bool
    dry_run: bool = False


class _Found(NamedTuple):
    """What is known of a message before anything is written. ``archived``: where to look for it; None: nowhere."""

    sent: MessageFacts | None
    archived: Stretch | None


class TakingBack:
    """Takes messages back, in whichever tier they are."""

    def __init__(self, store: Database, archive: Archive, context: Context) -> None:
        """``context``: its clock decides what may still be seen."""
        self._store = store
        self._archive = archive
        self._context = context

    async def take_back(self, wish: Wish) -> None:
        """Take a message back, once that is durable; of one that was taken back before nothing changes.

        Raises NotMemberError, NotFoundError for what the user cannot see, NotSenderError, BadRequestError for a commit
        or if the group has too many, TooManyRequestsError, ClockInDoubtError, ArchiveError or StoreError.
        """
        while True:
            found = await self._store.read(_look, self._context, wish)
            sent = found.sent
            if found.archived:
                sent = await self._archive.find(found.archived)
                if await self._store.read(stretches.relaid) != found.archived.relaid:
                    continue  # it may have been read from where it no longer was
            # Nothing of what is known of a message changes, wherever it is by now.
            in_database = self._store.read if wish.dry_run else self._store.write
            await in_database(take_back, self._context, wish, sent)
            return


def _look(connection: sqlite3.Connection, context: Context, wish: Wish) -> _Found:
    group = require_member(connection, context, wish.group_id, wish.user_id).group
    if wish.number > group.archived_seq:
        return _Found(messages.find_sent(connection, group.group_key, wish.number), None)
    view = visibility.of_group(connection, group, context.clock.moment().earliest)
    found = stretches.stretch(connection, group, wish.number - 1, view, include_redacted=True)
    parts = [part for part in found.parts if part.first_seq <= wish.number] if found else []
    if not (found and parts):
        return _Found(None, None)
    return _Found(None, replace(found, after=wish.number - 1, border=wish.number, parts=parts))


def take_back(connection: sqlite3.Connection, context: Context, wish: Wish, sent: MessageFacts | None) -> None:
    """Take a message back of which ``sent`` is known; None: it is in neither tier.

    Raises as ``TakingBack.take_back`` does.
    """
    member = require_member(connection, context, wish.group_id, wish.user_id)
    group, now = member.group, context.now()
    former = taken_back.find(connection, group.group_key, wish.number)
    is_there = sent is not None and taken_back.is_stored(connection, group.group_key, wish.number)
    if former and former.taken_by == wish.user_id and (former.is_erased or not is_there):
        return
    if sent is None or not is_there:
        raise NotFoundError("no such message")
    _require_seen(connection, group, wish.number, sent, context.clock.moment())
    is_own = sent.sender_id == wish.user_id
    if not is_own and not (wish.admins_may and member.role == "admin"):
        raise NotSenderError
    if sent.is_commit:
        raise BadRequestError("a commit cannot be taken back: the others need it to go on")
    if former:
        return
    if group.taken_back_count >= taken_back.MOST:
        raise BadRequestError("the group has too many messages that were taken back: some have to be erased first")
    if wish.dry_run:
        return
    quotas.count_change(context.quotas, wish.user_id)
    taken_back.add(connection, group.group_key, wish.number, TakenBack(now, wish.user_id))
    _note(connection, member, wish.number, sent, now)


def _require_seen(
    connection: sqlite3.Connection, group: GroupRow, number: int, sent: MessageFacts, moment: Moment
) -> None:
    """Raise NotFoundError unless members may see a message, be it redacted.

    Raises ClockInDoubtError for what only a clock in doubt hides.
    """
    by_deleted = (
        not sent.is_commit
        and connection.execute(f"SELECT 1 WHERE ? IN ({DELETED_SENDERS})", (sent.sender_id,)).fetchone()
    )
    view = visibility.of_group(connection, group, moment.now)
    is_kept = sent.is_commit and limits.keeps_commit(connection, group.group_key, number)
    message = messages.MessageRow(number, sent.sender_id, b"", sent.created_at, is_kept, redact_at=FOREVER)
    if by_deleted or not view.at(moment.earliest).admits(message):
        raise NotFoundError("no such message")
    if not view.admits(message):
        raise ClockInDoubtError


def _note(connection: sqlite3.Connection, member: Membership, number: int, sent: MessageFacts, now: int) -> None:
    """Note in the audit log who has taken back what."""
    is_own, name = sent.sender_id == member.user_id, users.find(connection, member.user_id)
    details = {"sequence_num": number, "sender_id": str(UUID(bytes=sent.sender_id))}
    if not is_own:
        details["admin_id"] = str(UUID(bytes=member.user_id))
    actor = f"{'user' if is_own else 'admin'} {name.username if name else ''}"
    subject = Subject(member.group.group_id, member.group.group_name)
    audit.note(connection, now, actor, AuditAction.MESSAGE_TAKEN_BACK, subject, details)
