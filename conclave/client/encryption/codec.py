"""The codec that encrypts with MLS (RFC 9420), compatible with existing clients of the protocol."""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from conclave.client.codec import ExternalCommit, MembershipChange, NewGroup, NewKeyPackages, PendingResend, Readable
from conclave.client.encryption.agenda import Agenda
from conclave.client.encryption.groups import AwaitedCommit, GroupRecord, GroupRecords, Stage
from conclave.client.encryption.headers import GroupInfoHeader, find_signature_key, read_group_info, read_header
from conclave.client.encryption.joining import COMMIT_ARRIVAL_SECONDS
from conclave.client.encryption.key_database import KeyDatabase
from conclave.client.encryption.maintenance import GroupMaintenance
from conclave.client.encryption.message_processor import MessageProcessor, encode_original
from conclave.client.encryption.packages import OwnKeys
from conclave.client.encryption.people import POLICY, GroupViews, KnownKeys, user_of
from conclave.client.encryption.texts import Texts
from conclave.client.encryption.view import GroupView, KnownKey, Trust
from conclave.client.errors import ClientError, EncryptionError, NotReadyError, ReplacedError
from conclave.client.events import EncryptionChanged, EncryptionNotice, News
from conclave.client.mls import (
    KeyPackage,
    MlsError,
    MlsGroup,
    OwnCommit,
    WrongRecipientError,
    decode_message,
    fingerprint,
)
from conclave.client.mls.codec import MAX_MESSAGE
from conclave.wire.results import FetchedMessage, GroupDetails

if TYPE_CHECKING:
    from conclave.client.api import Client


DISK_ERRORS = (sqlite3.OperationalError, sqlite3.InternalError)
"""SQLite's errors for a failing file or disk, not for invalid data."""

MAX_REQUEST_BYTES = 750_000
"""Maximum size of commit, Welcome and group info together: a request has 1 MiB at most, and base64 takes 4/3."""

LOST = "The keys of this group cannot be used on this device any more. It joins again."

WELCOMED = "This member's key has signed the Welcome by which you joined."

WELCOMED_BY_ANOTHER = (
    "This member's key has signed the Welcome by which you joined, but the server had named another inviter."
)


def _unix_now() -> int:
    return int(time.time())


class MlsCodec:
    """The encryption of an account. Its keys are in a file, which only one program can use at a time."""

    encrypts = True

    def __init__(
        self,
        path: Path | str | None,
        user_id: UUID,
        *,
        now: Callable[[], int] = _unix_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``path``: the file, created if it does not exist; None: in memory.

        ``now``: Unix seconds, until ``use_time`` sets the server's. ``clock``: monotonic seconds. Raises KeyStoreError.
        """
        self._user_id, self._unix_time = user_id, now
        self._database = KeyDatabase(None if path is None else Path(path), user_id)
        self._news: list[News] = []
        self._listed_keys: set[str] = set()
        self._agenda = Agenda(clock)
        self._groups = GroupRecords(self._database, POLICY, self._report_lost_state)
        self._texts = Texts(self._database)
        self._known_keys = KnownKeys(self._database, user_id)
        self._views = GroupViews(user_id, self._groups, self._known_keys, self._agenda)
        self._own_keys = OwnKeys(self._database, user_id, self._now)
        self._processor = MessageProcessor(
            user_id, self._groups, self._known_keys, self._texts, self._agenda, self._news, self._now
        )
        self._maintenance = GroupMaintenance(self, self._agenda, user_id, self._news, self._now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def use_time(self, now: Callable[[], int]) -> None:
        """Use ``now`` as the clock: lifetimes of key packages are compared with other machines' clocks."""
        self._unix_time = now

    def _now(self) -> int:
        return self._unix_time()

    # State for the user interface

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the user's own key."""
        return self._own_keys.fingerprint

    def view(self, group_id: UUID) -> GroupView:
        """Return the current state of a group's encryption."""
        return self._views.view(group_id)

    def known_key(self, user_id: UUID) -> KnownKey | None:
        """Return the last known key of a user; ``view`` has those of a group."""
        return self._known_keys.get(user_id)

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        """Record that the user has verified a key."""
        return self._views.set_trust(user_id, fingerprint, Trust.VERIFIED)

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        """Record that the user accepts a changed key unverified."""
        return self._views.set_trust(user_id, fingerprint, Trust.UNKNOWN)

    def take_news(self) -> list[News]:
        """Return the queued news, and clear the queue."""
        news = list(self._news)
        self._news.clear()
        return news

    # Messages

    def encode(self, group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
        """Encrypt a text. Raises ValueError for an empty or too long one, and EncryptionError."""
        if not text:
            raise ValueError("a message must not be empty")
        if len(text.encode()) > MAX_MESSAGE // 2:
            raise ValueError(f"a message has more than {MAX_MESSAGE // 2} bytes")
        return self._encrypt(group_id, text, send_id=send_id.bytes if send_id else b"")

    def encode_resend(self, resend: PendingResend) -> bytes:
        """Encrypt a text to resend. Its authenticated data contains the number of the first message."""
        return self._encrypt(resend.group_id, resend.text, resend.original)

    def _encrypt(self, group_id: UUID, text: str, original: int = 0, send_id: bytes = b"") -> bytes:
        self._check_ready(self._groups.get(group_id) or GroupRecord(group_id, 0))
        with self._change_group(group_id) as record:
            group = self._require_group(record)
            payload = group.encrypt(text.encode(), encode_original(original) if original else b"")
            now = self._now()
            self._texts.keep_sent(record, payload, text, group.epoch, now, original=original, send_id=send_id)
        return payload

    def _check_ready(self, record: GroupRecord) -> None:
        """Raise NotReadyError if the client cannot encrypt yet. The state stays cached, since callers poll."""
        group, agenda = self._require_group(record), self._agenda.group(record.group_id)
        if agenda.has_later_messages or not agenda.is_caught_up:  # the state may be outdated, with used keys
            self._agenda.schedule(record.group_id)
            raise NotReadyError("messages of this group are still being read: try again soon")
        reason = ""
        if agenda.is_new:  # texts in a branch without the others would be lost
            reason = "this client has just joined, and is comparing its keys with those of the others"
        elif record.is_doubtful:
            reason = "the keys may be an old copy, and are being replaced: try again soon"
        elif group.has_proposals:
            reason = "the group is being changed: try again soon"
        if reason:
            self._agenda.schedule(record.group_id, 0)
            raise NotReadyError(reason)

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """Erase the text of a payload that did not come back, and of other attempts if one was stored."""
        record = self._groups.get(group_id)
        if record and (own := self._texts.find_sent(record, payload)) and not own.is_kept:
            with self._database.transaction():
                if other_attempt_stored:
                    self._texts.drop_other_attempts(record, own)
                self._texts.drop_sent(own.text_key)

    def pending_resends(self) -> list[PendingResend]:
        """Return the texts to resend: their keys had expired, or other members lack them."""
        return self._texts.pending_resends()

    def drop_resend(self, key: int) -> None:
        """Erase a text that was resent, or must not be resent."""
        with self._database.transaction():
            self._texts.drop_sent(key)

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return the numbers of messages whose texts are stored."""
        record = self._groups.get(group_id)
        return self._texts.kept_numbers(record) if record else []

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Erase the texts of messages that no longer exist."""
        if record := self._groups.get(group_id):
            with self._database.transaction():
                self._texts.drop_erased(record, numbers, are_taken_back=are_taken_back)

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return own resent copies whose originals were taken back."""
        return self._texts.unwanted()

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """Delete the record of a resent copy that was taken back."""
        if record := self._groups.get(group_id):
            with self._database.transaction():
                self._texts.drop_repeat(record, number)

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return the numbers of the resent copies of a message."""
        record = self._groups.get(group_id)
        return self._texts.repeats_of(record, number) if record else []

    def needs_members(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> bool:
        """Return whether a sender who is not a known admin may change the members."""
        if not self.has_keys(group_id):
            return False
        agenda = self._agenda.group(group_id)
        headers = (read_header(each.mls_message) for each in messages if each.sender_id not in agenda.admins)
        return any(header is not None and header.may_change_members for header in headers)

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Update the members and admins from the server's list of the user's groups."""
        for group in groups:
            for each in group.members:
                if each.user_id == self._user_id:
                    self.record_listed_key(each.signing_key_fingerprint)
            if self._agenda.group(group.group_id).update_members(group):
                # The view shows members without keys, and strangers with keys.
                self._news.append(EncryptionChanged(group.group_id))

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Decrypt messages, and apply commits. All changes are written to the disk before it returns.

        If decryption fails as a whole, the group's keys are dropped, and the messages are skipped.
        """
        if not messages:
            return []
        status = self.view(group_id).status
        try:
            with self._change_group(group_id) as record:
                epoch = record.group.epoch if record.group else -1
                found = self._processor.process(record, messages)
                is_changed = (record.group.epoch if record.group else -1) != epoch
        except EncryptionError:
            with self._change_group(group_id) as record:
                self._processor.skip_messages(record, messages)
            self._report_lost_state(group_id)
            found, is_changed = [], True
        if is_changed or self.view(group_id).status is not status:
            self._news.append(EncryptionChanged(group_id))
        return found

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """Erase texts that the history has. If it has unprocessed messages, the keys are an old copy."""
        self._agenda.group(group_id).record_fetch()
        record = self._groups.get(group_id)
        if record and record.stage is Stage.ACTIVE and 0 < record.up_to < up_to:
            with self._change_group(group_id) as record:
                if record.group:  # an unread message may be a commit: older group infos must not be used
                    self._groups.record_commit(record, up_to, record.group.epoch, b"")
                self._processor.drop_outdated_state(record)
            self._news.append(EncryptionChanged(group_id))
        if record and any(number <= up_to for number in self._texts.decrypted(record)):
            with self._database.transaction():
                self._texts.drop_decrypted(record, up_to)

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """Record that all messages were read, including those sent with these keys.

        Texts of earlier runs are erased: encrypted ones that have not arrived will never arrive, and decrypted ones
        are in the history.
        """
        agenda, record = self._agenda.group(group_id), self._groups.get(group_id)
        if record and 0 < record.up_to < last and not agenda.is_caught_up:
            with self._change_group(group_id) as record:
                self._processor.record_gap(record)
                record.up_to = last
        agenda.record_caught_up()
        if has_all and record and (self._texts.has_stale(record, self._now()) or self._texts.decrypted(record)):
            with self._database.transaction():
                self._texts.drop_stale(record, self._now())
                self._texts.drop_decrypted(record, record.up_to)
        if record and self._processor.is_confirmed(record) and self._texts.has_confirmable(record, self._now()):
            with self._database.transaction():
                self._texts.drop_confirmable(record, self._now())

    def save_unsent(self, data: bytes) -> None:
        """Store unsent input, encrypted with a key derived from the account's."""
        with self._database.transaction():
            self._own_keys.save_unsent(data)

    def load_unsent(self) -> bytes:
        """Return the stored unsent input."""
        return self._own_keys.load_unsent()

    # Members

    def has_keys(self, group_id: UUID) -> bool:
        """Return whether the user has the keys of a group."""
        record = self._groups.get(group_id)
        return record is not None and record.stage is Stage.ACTIVE

    @property
    def needs_key_packages(self) -> bool:
        """Whether to replace the key packages on the server."""
        return self._own_keys.are_outdated

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Create key packages. Their private keys are written to the disk before it returns."""
        return self._own_keys.make(regular, last_resort=last_resort)

    def create(self, group_id: UUID) -> NewGroup:
        """Create a group with the user as its only member."""
        with self._change_group(group_id) as record:
            record.group = MlsGroup.create(self._own_keys.new_package(), self._now(), policy=POLICY)
            record.renewed_at, record.missed = self._now(), 0
            self._processor.enter(record)
            return NewGroup(record.group.group_info(), record.group.group_id.hex())

    def record_listed_key(self, listed: str) -> None:
        """Record the fingerprint that the server lists for the account, perhaps of another device; "": none."""
        if listed:
            self._listed_keys.add(listed)

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Create a commit that adds a user. Raises NotReadyError, and EncryptionError if the key is another user's."""
        with self._change_group(group_id, "this user cannot be added") as record:
            package = decode_message(key_package)
            if not isinstance(package, KeyPackage) or package.leaf_node.credential.identity != user_id.bytes:
                raise EncryptionError("the server sent a key that is not this user's: the user was not added")
            commit = self._require_group(record).commit(self._now(), add=[package])
        return _change(commit)

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Create a commit that removes a member; empty without keys, or if the user is not a member."""
        record = self._groups.get(group_id)
        member = record.group.find(user_id.bytes) if record and record.group and record.stage is Stage.ACTIVE else None
        if member is None:
            return MembershipChange(b"", b"")
        return self.commit(group_id, [member.leaf_index])

    def commit(self, group_id: UUID, remove: Sequence[int] = ()) -> MembershipChange:
        """Create a commit with new own keys that removes leaves and includes proposals. Raises EncryptionError."""
        with self._change_group(group_id, "the group cannot be changed") as record:
            own_commit = self._require_group(record).commit(self._now(), remove=remove)
        return _change(own_commit)

    def join(self, group_id: UUID, group_info: bytes, *, forget_commits: bool = False) -> ExternalCommit:
        """Create an external commit, which removes an old own leaf. Raises EncryptionError.

        ``forget_commits``: first forget the known commits, which led into another branch.
        """
        info = read_group_info(group_info)
        if info is None:
            raise EncryptionError("this group has no encryption keys, or those of an incompatible client")
        with self._change_group(group_id, "the server's group info is unusable") as record:
            self._processor.drop_state(record)
            if forget_commits:
                self._groups.forget_commits(record)
            own = self._own_keys.new_package()
            group, commit = MlsGroup.join_external(group_info, own, self._now(), resync=True, policy=POLICY)
            record.group = group
            record.await_commit(AwaitedCommit(group.epoch - 1, group.confirmation_tag), info.tag)
            record.renewed_at = self._now()
            self._groups.record_join_commit(record, group.confirmation_tag)
            self._agenda.group(group_id).join_sent_at = self._agenda.clock()
        return ExternalCommit(commit, group.group_id.hex(), _info_if_fits(group.group_info(), commit))

    def join_by_welcome(self, group_id: UUID, welcome: bytes, inviter: UUID | None = None) -> bool:
        """Join with a Welcome, which takes effect when its commit arrives.

        The signer is reported. It is a warning if the server has named another ``inviter``.
        """
        digest = hashlib.sha256(welcome).digest()
        record = self._groups.get(group_id)
        if record and record.welcome == digest:
            return True  # already processed, and the server's answer was lost
        try:
            group, own_package = MlsGroup.join(welcome, self._own_keys.stored_packages(), self._now(), policy=POLICY)
        except WrongRecipientError:
            return record is not None and record.stage is Stage.ACTIVE
        except MlsError:
            return True  # unusable: the client joins with an external commit
        try:
            with self._change_group(group_id) as record:
                self._processor.drop_state(record)
                self._own_keys.drop_used(own_package)
                record.group, record.welcome = group, digest
                record.await_commit(AwaitedCommit(group.epoch - 1, group.confirmation_tag), b"")
                self._agenda.group(group_id).join_sent_at = self._agenda.clock()
                record.renewed_at = 0 if own_package.key_package.is_last_resort else self._now()
                self._processor.resolve_awaited(record)
        except EncryptionError:
            return True
        if group.welcomed_by:
            signer = user_of(group.welcomed_by)
            is_expected = inviter in (None, signer)
            kind, sentence = ("welcomed", WELCOMED) if is_expected else ("refused", WELCOMED_BY_ANOTHER)
            self._news.append(EncryptionNotice(group_id, kind, sentence, signer))
        self._agenda.schedule(group_id, COMMIT_ARRIVAL_SECONDS)
        return True

    def groups(self) -> set[UUID]:
        """Return the groups with local data."""
        return set(self._groups.ids())

    def forget(self, group_id: UUID) -> None:
        """Erase all local data of a group."""
        if self._groups.get(group_id):
            with self._database.transaction():
                self._groups.forget(group_id)
        self._agenda.forget(group_id)

    def reset_keys(self) -> None:
        """Create a new signature key, and erase the states of all groups, which are joined again."""
        with self._database.transaction():
            self._own_keys.replace_key()
            for group_id in self._groups.ids():
                record = self._groups.get_or_make(group_id)
                self._processor.drop_state(record)
                record.had_keys = False  # there is no leaf with the new keys yet
                self._groups.save(record)
        for group_id in self._groups.ids():
            self._news.append(EncryptionChanged(group_id))
            self.schedule_check(group_id)

    # Automatic work

    def schedule_check(self, group_id: UUID) -> None:
        """Schedule a check of a group."""
        self._agenda.schedule(group_id)

    @property
    def is_due(self) -> bool:
        """Whether a check of a group is due."""
        return bool(self._agenda.due())

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Check the groups that are due; return those to fetch afterwards."""
        return await self._maintenance.run_maintenance(client, groups)

    def record(self, group_id: UUID) -> GroupRecord | None:
        """Return the record of a group, read-only; ``_change_group`` changes it."""
        return self._groups.get(group_id)

    def is_outdated(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Return whether commits after a group info exist, or its commit came second."""
        is_old = self._groups.first_commit(record, info.epoch) is not None
        return is_old or self._groups.commit_into(record, info.epoch) not in (None, info.tag)

    def forget_commits(self, record: GroupRecord) -> None:
        """Forget the commits that arrived without keys: one of them may be invalid."""
        with self._database.transaction():
            self._groups.forget_commits(record)

    def has_passed(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Return whether the state of a group has passed the epoch of a group info."""
        return self._groups.has_been_at(record, info.tag)

    def is_senior(self, record: GroupRecord, user_id: UUID) -> bool:
        """Return whether a user did not join after this device."""
        return self._processor.is_senior(record, user_id)

    def drop_state(self, group_id: UUID) -> None:
        """Drop the state of a group, to join it again."""
        with self._change_group(group_id) as record:
            self._processor.drop_state(record)
        self._news.append(EncryptionChanged(group_id))

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Return whether the user's leaf in a group info shows that another device has replaced this one; record it."""
        record = self._groups.get(group_id)
        if record is None or not record.had_keys:
            return False
        key = find_signature_key(group_info, self._user_id.bytes)
        if key is None or self._own_keys.is_own(key):
            return False  # the group info may be older than the current keys
        if self._listed_keys and fingerprint(key) not in self._listed_keys:
            return False  # no device of the account has used that key: a member has forged the leaf
        try:  # otherwise an invalid group info could exclude this device
            MlsGroup.join_external(group_info, self._own_keys.new_package(), self._now(), resync=True, policy=POLICY)
        except MlsError:
            return False
        with self._change_group(group_id) as record:
            self._processor.mark_replaced(record)
        self._news.append(EncryptionChanged(group_id))
        return True

    def _report_lost_state(self, group_id: UUID) -> None:
        """Report an unusable state, and schedule joining again."""
        self._news += [EncryptionNotice(group_id, "lost", LOST), EncryptionChanged(group_id)]
        self._agenda.schedule(group_id)

    @contextmanager
    def _change_group(
        self, group_id: UUID, failure: str = "the keys of this group cannot be used"
    ) -> Iterator[GroupRecord]:
        """Change a group's record in a transaction, which is written to the disk at the end.

        Errors caused by the group's data are raised as EncryptionError, so that only this group is affected. Errors of
        the disk affect all groups, and are raised unchanged.
        """
        news_count = len(self._news)
        try:
            with self._database.transaction():
                record = self._groups.get_or_make(group_id)
                yield record
                self._groups.save(record)
        except BaseException as error:
            self._groups.reload(group_id)
            self._known_keys.reload()
            del self._news[news_count:]
            if not isinstance(error, Exception) or isinstance(error, (ClientError, OSError, *DISK_ERRORS)):
                raise
            raise EncryptionError(f"{failure}: {error}") from error

    def _require_group(self, record: GroupRecord) -> MlsGroup:
        if record.stage is Stage.REPLACED:
            raise ReplacedError("another device of yours has replaced this one: /reset brings it back")
        if record.stage is not Stage.ACTIVE or record.group is None:
            self._agenda.schedule(record.group_id)
            raise NotReadyError("the keys of this group have not arrived yet: try again soon")
        return record.group


def _change(commit: OwnCommit) -> MembershipChange:
    welcome = commit.welcome or b""
    return MembershipChange(commit.message, _info_if_fits(commit.group_info, commit.message, welcome), welcome)


def _info_if_fits(group_info: bytes, *others: bytes) -> bytes:
    """Return a group info if it fits into one request with the other messages; otherwise b"".

    Without it, users can join only by invites, but members can be removed.
    """
    return group_info if sum(map(len, others)) + len(group_info) <= MAX_REQUEST_BYTES else b""
