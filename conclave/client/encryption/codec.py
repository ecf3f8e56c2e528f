"""The codec that encrypts: MLS, by RFC 9420, as existing clients of the protocol use it."""

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
"""What SQLite raises where the file or the disk fails, and not for what is to be stored."""

MAX_REQUEST_BYTES = 750_000
"""Bytes of a commit and what goes with it: a request has 1 MiB at most, and bytes take 4/3 of their length in JSON."""

LOST = "The keys of this group cannot be used on this device any more. It comes in again."

WELCOMED = "This member's keys have signed what let you in."

WELCOMED_BY_ANOTHER = (
    "This member's keys have signed what let you in, and the server had named somebody else as the one who invites you."
)


def _unix_now() -> int:
    return int(time.time())


class MlsCodec:
    """An account's encryption. Its keys are in a file, which one program uses at a time."""

    encrypts = True

    def __init__(
        self,
        path: Path | str | None,
        user_id: UUID,
        *,
        now: Callable[[], int] = _unix_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``path``: the file, made if it is not there; None: in memory only.

        ``now``: Unix seconds, until ``use_time`` gives the server's. ``clock``: seconds that only go forward.
        Raises KeyStoreError.
        """
        self._user_id, self._unix_time = user_id, now
        self._database = KeyDatabase(None if path is None else Path(path), user_id)
        self._news: list[News] = []
        self._listed_keys: set[str] = set()
        self._agenda = Agenda(clock)
        self._groups = GroupRecords(self._database, POLICY, self._lost)
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
        """Take the time from ``now``: the lifetime of a key package is compared with other machines' time."""
        self._unix_time = now

    def _now(self) -> int:
        return self._unix_time()

    # What is shown

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the user's own key."""
        return self._own_keys.fingerprint

    def view(self, group_id: UUID) -> GroupView:
        """Return a group's encryption as it is now."""
        return self._views.view(group_id)

    def known_key(self, user_id: UUID) -> KnownKey | None:
        """Return the key of a person as it was seen last; ``view`` has the one of a group."""
        return self._known_keys.get(user_id)

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        """Note that the user has compared a key."""
        return self._views.set_trust(user_id, fingerprint, Trust.VERIFIED)

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        """Note that the user takes a changed key without having compared it."""
        return self._views.set_trust(user_id, fingerprint, Trust.UNKNOWN)

    def take_news(self) -> list[News]:
        """Return what people should know, and was not told."""
        told = list(self._news)
        self._news.clear()
        return told

    # Messages

    def encode(self, group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
        """Encrypt a text. Raises ValueError for an empty one or one that is too long, and EncryptionError."""
        if not text:
            raise ValueError("a message must not be empty")
        if len(text.encode()) > MAX_MESSAGE // 2:
            raise ValueError(f"a message has more than {MAX_MESSAGE // 2} bytes")
        return self._encrypt(group_id, text, send_id=send_id.bytes if send_id else b"")

    def encode_resend(self, again: PendingResend) -> bytes:
        """Encrypt a text anew; what it says in the clear is under which number it came first."""
        return self._encrypt(again.group_id, again.text, again.original)

    def _encrypt(self, group_id: UUID, text: str, original: int = 0, send_id: bytes = b"") -> bytes:
        self._check_ready(self._groups.get(group_id) or GroupRecord(group_id, 0))
        with self._changing(group_id) as record:
            group = self._require_group(record)
            payload = group.encrypt(text.encode(), encode_original(original) if original else b"")
            now = self._now()
            self._texts.keep_sent(record, payload, text, group.epoch, now, original=original, send_id=send_id)
        return payload

    def _check_ready(self, record: GroupRecord) -> None:
        """Raise NotReadyError if nothing can be encrypted yet. The state stays loaded: who waits asks often."""
        group, agenda = self._require_group(record), self._agenda.group(record.group_id)
        if agenda.has_later_messages or not agenda.is_caught_up:  # the state may be an old one, whose keys were used
            self._agenda.schedule(record.group_id)
            raise NotReadyError("what came to this group is still being read: it goes on by itself")
        why = ""
        if agenda.is_new:  # what is said in a branch that the others are not in would be lost
            why = "this client has just come in, and compares its keys with those of the others"
        elif record.is_doubtful:
            why = "messages are gone that may have been sent from here: new keys are on their way"
        elif group.has_proposals:
            why = "the group is being changed: it goes on in a moment"
        if why:
            self._agenda.schedule(record.group_id, 0)
            raise NotReadyError(why)

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """Forget the text of a payload, unless it came back; and of other tries, if one of them has come."""
        record = self._groups.get(group_id)
        if record and (own := self._texts.find_sent(record, payload)) and not own.is_kept:
            with self._database.transaction():
                if other_attempt_stored:
                    self._texts.drop_other_attempts(record, own)
                self._texts.drop_sent(own.text_key)

    def pending_resends(self) -> list[PendingResend]:
        """Return texts that came after their keys had passed, or with keys that were not those of the others."""
        return self._texts.pending_resends()

    def drop_resend(self, key: int) -> None:
        """Forget such a text."""
        with self._database.transaction():
            self._texts.drop_sent(key)

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return the numbers of the messages of which a text is kept."""
        record = self._groups.get(group_id)
        return self._texts.kept_numbers(record) if record else []

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Erase what is kept of messages that are gone."""
        if record := self._groups.get(group_id):
            with self._database.transaction():
                self._texts.drop_erased(record, numbers, are_taken_back=are_taken_back)

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return own messages that were sent anew although their first ones were taken back."""
        return self._texts.unwanted()

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """Forget such a message."""
        if record := self._groups.get(group_id):
            with self._database.transaction():
                self._texts.drop_repeat(record, number)

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return the numbers under which such a text has come once more."""
        record = self._groups.get(group_id)
        return self._texts.repeats_of(record, number) if record else []

    def needs_members(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> bool:
        """Tell whether somebody changes the members who was no admin when the list was read last, or none was read."""
        if not self.has_keys(group_id):
            return False
        agenda = self._agenda.group(group_id)
        headers = (read_header(each.mls_message) for each in messages if each.sender_id not in agenda.admins)
        return any(header is not None and header.may_change_members for header in headers)

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Take the members and admins of the user's groups, as the server lists them now."""
        for group in groups:
            for each in group.members:
                if each.user_id == self._user_id:
                    self.record_listed_key(each.signing_key_fingerprint)
            if self._agenda.group(group.group_id).update_members(group):
                # Who cannot read yet, and who can without being a member, is shown by it.
                self._news.append(EncryptionChanged(group.group_id))

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Decrypt messages, and take commits. All that it leads to is on the disk when it returns.

        If that fails, the keys of the group are given up, and the messages are passed by.
        """
        if not messages:
            return []
        status = self.view(group_id).status
        try:
            with self._changing(group_id) as record:
                epoch = record.group.epoch if record.group else -1
                found = self._processor.process(record, messages)
                changed = (record.group.epoch if record.group else -1) != epoch
        except EncryptionError:
            with self._changing(group_id) as record:
                self._processor.skip_messages(record, messages)
            self._lost(group_id)
            found, changed = [], True
        if changed or self.view(group_id).status is not status:
            self._news.append(EncryptionChanged(group_id))
        return found

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """Erase the texts that the history has; if it has more than was read here, these keys are an old copy."""
        self._agenda.group(group_id).record_fetch()
        record = self._groups.get(group_id)
        if record and record.stage is Stage.ACTIVE and 0 < record.up_to < up_to:
            with self._changing(group_id) as record:
                if record.group:  # what was not read may have a commit: a group info from before it leads to nobody
                    self._groups.record_commit(record, up_to, record.group.epoch, b"")
                self._processor.drop_outdated_state(record)
            self._news.append(EncryptionChanged(group_id))
        if record and any(number <= up_to for number in self._texts.decrypted(record)):
            with self._database.transaction():
                self._texts.drop_decrypted(record, up_to)

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """Note that everything was read: from here on it is known what was sent by these keys.

        What an earlier program has encrypted and is not there now never will be, and what it has decrypted without
        having stored it is not asked for any more: their texts go.
        """
        agenda, record = self._agenda.group(group_id), self._groups.get(group_id)
        if record and 0 < record.up_to < last and not agenda.is_caught_up:
            with self._changing(group_id) as record:
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
        """Keep what is not sent, encrypted with a key that is made of the account's."""
        with self._database.transaction():
            self._own_keys.save_unsent(data)

    def load_unsent(self) -> bytes:
        """Return what is kept so."""
        return self._own_keys.load_unsent()

    # Members

    def has_keys(self, group_id: UUID) -> bool:
        """Tell whether the user has the keys of a group."""
        record = self._groups.get(group_id)
        return record is not None and record.stage is Stage.ACTIVE

    @property
    def needs_key_packages(self) -> bool:
        """Whether those at the server are old."""
        return self._own_keys.are_outdated

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Make key packages; their private keys are on the disk when it returns."""
        return self._own_keys.make(regular, last_resort=last_resort)

    def create(self, group_id: UUID) -> NewGroup:
        """Begin a new group, with the user alone in it."""
        with self._changing(group_id) as record:
            record.group = MlsGroup.create(self._own_keys.new_package(), self._now(), policy=POLICY)
            record.renewed_at, record.missed = self._now(), 0
            self._processor.enter(record)
            return NewGroup(record.group.group_info(), record.group.group_id.hex())

    def record_listed_key(self, listed: str) -> None:
        """Note the fingerprint that the server has for the account; "": none. Another device has uploaded another."""
        if listed:
            self._listed_keys.add(listed)

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Make a commit that adds a user. Raises NotReadyError, and EncryptionError for a key of somebody else."""
        with self._changing(group_id, "this user cannot be added") as record:
            package = decode_message(key_package)
            if not isinstance(package, KeyPackage) or package.leaf_node.credential.identity != user_id.bytes:
                raise EncryptionError("the server has given a key that is not this user's: nobody was added")
            made = self._require_group(record).commit(self._now(), add=[package])
        return _change(made)

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Make a commit that removes a member; nothing if the keys are not there, or the member is not."""
        record = self._groups.get(group_id)
        member = record.group.find(user_id.bytes) if record and record.group and record.stage is Stage.ACTIVE else None
        if member is None:
            return MembershipChange(b"", b"")
        return self.commit(group_id, [member.leaf_index])

    def commit(self, group_id: UUID, remove: Sequence[int] = ()) -> MembershipChange:
        """Make a commit with new own keys, which removes leaves, and takes proposals along. Raises EncryptionError."""
        with self._changing(group_id, "the group cannot be changed") as record:
            made = self._require_group(record).commit(self._now(), remove=remove)
        return _change(made)

    def join(self, group_id: UUID, group_info: bytes, *, anew: bool = False) -> ExternalCommit:
        """Make a commit by which the user comes in from outside; an own old leaf is removed. Raises EncryptionError.

        ``anew``: which commits there were is forgotten, since they led into another branch.
        """
        info = read_group_info(group_info)
        if info is None:
            raise EncryptionError("this group was made without encryption keys, or by a client that encrypts otherwise")
        with self._changing(group_id, "the group info that the server has is of no use") as record:
            self._processor.drop_state(record)
            if anew:
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
        """Take the state that a Welcome leads to. It counts once the commit that it belongs to has come.

        Who has signed it is told, loudly if it is not the ``inviter`` whom the server has named.
        """
        digest = hashlib.sha256(welcome).digest()
        record = self._groups.get(group_id)
        if record and record.welcome == digest:
            return True  # it was taken before, and the answer of the server was lost
        try:
            group, used = MlsGroup.join(welcome, self._own_keys.stored_packages(), self._now(), policy=POLICY)
        except WrongRecipientError:
            return record is not None and record.stage is Stage.ACTIVE
        except MlsError:
            return True  # it is of no use: the user asks in
        try:
            with self._changing(group_id) as record:
                self._processor.drop_state(record)
                self._own_keys.drop_used(used)
                record.group, record.welcome = group, digest
                record.await_commit(AwaitedCommit(group.epoch - 1, group.confirmation_tag), b"")
                self._agenda.group(group_id).join_sent_at = self._agenda.clock()
                record.renewed_at = 0 if used.key_package.is_last_resort else self._now()
                self._processor.resolve_awaited(record)
        except EncryptionError:
            return True
        if group.welcomed_by:
            by = user_of(group.welcomed_by)
            is_named = inviter in (None, by)
            kind, sentence = ("welcomed", WELCOMED) if is_named else ("refused", WELCOMED_BY_ANOTHER)
            self._news.append(EncryptionNotice(group_id, kind, sentence, by))
        self._agenda.schedule(group_id, COMMIT_ARRIVAL_SECONDS)
        return True

    def groups(self) -> set[UUID]:
        """Return the groups of which something is kept."""
        return set(self._groups.ids())

    def forget(self, group_id: UUID) -> None:
        """Erase all that is here of a group."""
        if self._groups.get(group_id):
            with self._database.transaction():
                self._groups.forget(group_id)
        self._agenda.forget(group_id)

    def reset_keys(self) -> None:
        """Begin with a new signature key. The states of all groups are erased: the user asks in again."""
        with self._database.transaction():
            self._own_keys.replace_key()
            for group_id in self._groups.ids():
                record = self._groups.get_or_make(group_id)
                self._processor.drop_state(record)
                record.had_keys = False  # nothing is missed with the new ones, and no leaf is theirs yet
                self._groups.save(record)
        for group_id in self._groups.ids():
            self._news.append(EncryptionChanged(group_id))
            self.schedule_check(group_id)

    # What goes on by itself

    def schedule_check(self, group_id: UUID) -> None:
        """Have a group looked at."""
        self._agenda.schedule(group_id)

    @property
    def is_due(self) -> bool:
        """Whether a group is to be looked at now."""
        return bool(self._agenda.due())

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Do what members' clients do by themselves."""
        return await self._maintenance.run_maintenance(client, groups)

    def record(self, group_id: UUID) -> GroupRecord | None:
        """Return a group, to be looked at; ``changing`` changes it."""
        return self._groups.get(group_id)

    def is_outdated(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Tell whether commits have come that a group info does not know, or that have won against its own."""
        is_old = self._groups.first_commit(record, info.epoch) is not None
        return is_old or self._groups.commit_into(record, info.epoch) not in (None, info.tag)

    def forget_commits(self, record: GroupRecord) -> None:
        """Forget the commits that have come while there were no keys: one of them may be rubbish."""
        with self._database.transaction():
            self._groups.forget_commits(record)

    def has_passed(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Tell whether the state of a group has been where a group info is."""
        return self._groups.has_been_at(record, info.tag)

    def is_senior(self, record: GroupRecord, user_id: UUID) -> bool:
        """Tell whether a user has not come in after this device."""
        return self._processor.is_senior(record, user_id)

    def drop_state(self, group_id: UUID) -> None:
        """Give the state of a group up: it leads nowhere."""
        with self._changing(group_id) as record:
            self._processor.drop_state(record)
        self._news.append(EncryptionChanged(group_id))

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Tell whether the user's place, which was this device's, has the key of another one; note it."""
        record = self._groups.get(group_id)
        if record is None or not record.had_keys:
            return False
        key = find_signature_key(group_info, self._user_id.bytes)
        if key is None or self._own_keys.is_own(key):
            return False  # the group info may be of the time before new keys
        if self._listed_keys and fingerprint(key) not in self._listed_keys:
            return False  # no device has logged in with that key: a member has made it up
        try:  # or anybody who gives the server something false could keep this device out
            MlsGroup.join_external(group_info, self._own_keys.new_package(), self._now(), resync=True, policy=POLICY)
        except MlsError:
            return False
        with self._changing(group_id) as record:
            self._processor.mark_replaced(record)
        self._news.append(EncryptionChanged(group_id))
        return True

    def _lost(self, group_id: UUID) -> None:
        """Tell that the state of a group cannot be used, and come in again."""
        self._news += [EncryptionNotice(group_id, "lost", LOST), EncryptionChanged(group_id)]
        self._agenda.schedule(group_id)

    @contextmanager
    def _changing(
        self, group_id: UUID, what_failed: str = "the keys of this group cannot be used"
    ) -> Iterator[GroupRecord]:
        """Change a group, all or nothing: what is changed is on the disk at the end.

        Whatever the data of the group leads to raises EncryptionError, so that only this group is affected. What the
        disk raises concerns all groups, and is raised as it is.
        """
        news = len(self._news)
        try:
            with self._database.transaction():
                record = self._groups.get_or_make(group_id)
                yield record
                self._groups.save(record)
        except BaseException as error:
            self._groups.reload(group_id)
            self._known_keys.reload()
            del self._news[news:]
            if not isinstance(error, Exception) or isinstance(error, (ClientError, OSError, *DISK_ERRORS)):
                raise
            raise EncryptionError(f"{what_failed}: {error}") from error

    def _require_group(self, record: GroupRecord) -> MlsGroup:
        if record.stage is Stage.REPLACED:
            raise ReplacedError("another device of yours has taken the place of this one: /reset brings it back")
        if record.stage is not Stage.ACTIVE or record.group is None:
            self._agenda.schedule(record.group_id)
            raise NotReadyError("the keys of this group are not there yet: it goes on by itself")
        return record.group


def _change(made: OwnCommit) -> MembershipChange:
    welcome = made.welcome or b""
    return MembershipChange(made.message, _info_if_fits(made.group_info, made.message, welcome), welcome)


def _info_if_fits(group_info: bytes, *others: bytes) -> bytes:
    """Return a group info if it fits into one request with the others; otherwise b"".

    Then nobody comes in without an invite until the group is smaller, but members can be removed.
    """
    return group_info if sum(map(len, others)) + len(group_info) <= MAX_REQUEST_BYTES else b""
