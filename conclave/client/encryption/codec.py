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
from conclave.client.encryption.coming_in import AWAITED_SECONDS
from conclave.client.encryption.groups import Awaited, Groups, Held, Stage
from conclave.client.encryption.headers import InfoHeader, key_in, read_header, read_info
from conclave.client.encryption.keeper import Keeper
from conclave.client.encryption.order import Order, in_the_clear
from conclave.client.encryption.packages import Packages
from conclave.client.encryption.people import POLICY, People, user_of
from conclave.client.encryption.sight import Sight
from conclave.client.encryption.texts import Texts
from conclave.client.encryption.vault import Vault
from conclave.client.encryption.view import GroupView, KnownKey, Trust
from conclave.client.errors import ClientError, EncryptionError, NotReadyError, ReplacedError
from conclave.client.events import EncryptionChanged, EncryptionNotice, News
from conclave.client.mls import (
    Commitment,
    Group as MlsGroup,
    KeyPackage,
    MlsError,
    NotForUsError,
    decode_message,
    fingerprint,
)
from conclave.client.mls.codec import MAX_MESSAGE
from conclave.wire.results import Group, StoredMessage

if TYPE_CHECKING:
    from conclave.client.api import Client


OF_THE_DISK = (sqlite3.OperationalError, sqlite3.InternalError)
"""What SQLite raises where the file or the disk fails, and not for what is to be stored."""

MOST_BYTES = 750_000
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
        self._user_id, self._time = user_id, now
        self._vault = Vault(None if path is None else Path(path), user_id)
        self._news: list[News] = []
        self._listed_keys: set[str] = set()
        self._agenda = Agenda(clock)
        self._groups = Groups(self._vault, POLICY, self._lost)
        self._texts = Texts(self._vault)
        self._people = People(self._vault, user_id)
        self._sight = Sight(user_id, self._groups, self._people, self._agenda)
        self._packages = Packages(self._vault, user_id, self._now)
        self._order = Order(user_id, self._groups, self._people, self._texts, self._agenda, self._news, self._now)
        self._keeper = Keeper(self, self._agenda, user_id, self._news, self._now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._vault.close()

    def use_time(self, now: Callable[[], int]) -> None:
        """Take the time from ``now``: the lifetime of a key package is compared with other machines' time."""
        self._time = now

    def _now(self) -> int:
        return self._time()

    # What is shown

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the user's own key."""
        return self._packages.fingerprint

    def view(self, group_id: UUID) -> GroupView:
        """Return a group's encryption as it is now."""
        return self._sight.view(group_id)

    def known_key(self, user_id: UUID) -> KnownKey | None:
        """Return the key of a person as it was seen last; ``view`` has the one of a group."""
        return self._people.get(user_id)

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        """Note that the user has compared a key."""
        return self._sight.judge(user_id, fingerprint, Trust.VERIFIED)

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        """Note that the user takes a changed key without having compared it."""
        return self._sight.judge(user_id, fingerprint, Trust.UNKNOWN)

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
        self._check_ready(self._groups.get(group_id) or Held(group_id, 0))
        with self._changing(group_id) as held:
            group = self._ready(held)
            payload = group.encrypt(text.encode(), in_the_clear(original) if original else b"")
            now = self._now()
            self._texts.keep_own(held, payload, text, group.epoch, now, original=original, send_id=send_id)
        return payload

    def _check_ready(self, held: Held) -> None:
        """Raise NotReadyError if nothing can be encrypted yet. The state stays loaded: who waits asks often."""
        group, agenda = self._ready(held), self._agenda.of(held.group_id)
        if agenda.ahead or not agenda.is_caught_up:  # the state may be an old one, whose keys were used
            self._agenda.want(held.group_id)
            raise NotReadyError("what came to this group is still being read: it goes on by itself")
        why = ""
        if agenda.is_new:  # what is said in a branch that the others are not in would be lost
            why = "this client has just come in, and compares its keys with those of the others"
        elif held.is_doubtful:
            why = "messages are gone that may have been sent from here: new keys are on their way"
        elif group.has_proposals:
            why = "the group is being changed: it goes on in a moment"
        if why:
            self._agenda.want(held.group_id, 0)
            raise NotReadyError(why)

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """Forget the text of a payload, unless it came back; and of other tries, if one of them has come."""
        held = self._groups.get(group_id)
        if held and (own := self._texts.own(held, payload)) and not own.is_kept:
            with self._vault.transaction():
                if other_attempt_stored:
                    self._texts.drop_other_tries(held, own)
                self._texts.drop_own(own.text_key)

    def pending_resends(self) -> list[PendingResend]:
        """Return texts that came after their keys had passed, or with keys that were not those of the others."""
        return self._texts.pending_resends()

    def drop_resend(self, key: int) -> None:
        """Forget such a text."""
        with self._vault.transaction():
            self._texts.drop_own(key)

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return the numbers of the messages of which a text is kept."""
        held = self._groups.get(group_id)
        return self._texts.kept_numbers(held) if held else []

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Erase what is kept of messages that are gone."""
        if held := self._groups.get(group_id):
            with self._vault.transaction():
                self._texts.drop_gone(held, numbers, are_taken_back=are_taken_back)

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return own messages that were sent anew although their first ones were taken back."""
        return self._texts.unwanted()

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """Forget such a message."""
        if held := self._groups.get(group_id):
            with self._vault.transaction():
                self._texts.drop_repeat(held, number)

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return the numbers under which such a text has come once more."""
        held = self._groups.get(group_id)
        return self._texts.repeats_of(held, number) if held else []

    def needs_members(self, group_id: UUID, messages: Sequence[StoredMessage]) -> bool:
        """Tell whether somebody changes the members who was no admin when the list was read last, or none was read."""
        if not self.has_keys(group_id):
            return False
        agenda = self._agenda.of(group_id)
        headers = (read_header(each.mls_message) for each in messages if each.sender_id not in agenda.admins)
        return any(header is not None and header.may_change_members for header in headers)

    def update_members(self, groups: Sequence[Group]) -> None:
        """Take the members and admins of the user's groups, as the server lists them now."""
        for group in groups:
            for each in group.members:
                if each.user_id == self._user_id:
                    self.record_listed_key(each.signing_key_fingerprint)
            if self._agenda.of(group.group_id).take_list(group):
                # Who cannot read yet, and who can without being a member, is shown by it.
                self._news.append(EncryptionChanged(group.group_id))

    def decode(self, group_id: UUID, messages: Sequence[StoredMessage]) -> list[Readable]:
        """Decrypt messages, and take commits. All that it leads to is on the disk when it returns.

        If that fails, the keys of the group are given up, and the messages are passed by.
        """
        if not messages:
            return []
        standing = self.view(group_id).standing
        try:
            with self._changing(group_id) as held:
                epoch = held.group.epoch if held.group else -1
                found = self._order.read(held, messages)
                changed = (held.group.epoch if held.group else -1) != epoch
        except EncryptionError:
            with self._changing(group_id) as held:
                self._order.pass_over(held, messages)
            self._lost(group_id)
            found, changed = [], True
        if changed or self.view(group_id).standing is not standing:
            self._news.append(EncryptionChanged(group_id))
        return found

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """Erase the texts that the history has; if it has more than was read here, these keys are an old copy."""
        self._agenda.of(group_id).fetches()
        held = self._groups.get(group_id)
        if held and held.stage is Stage.IN and 0 < held.up_to < up_to:
            with self._changing(group_id) as held:
                if held.group:  # what was not read may have a commit: a group info from before it leads to nobody
                    self._groups.note_commit(held, up_to, held.group.epoch, b"")
                self._order.give_up_old(held)
            self._news.append(EncryptionChanged(group_id))
        if held and any(number <= up_to for number in self._texts.read(held)):
            with self._vault.transaction():
                self._texts.drop_read(held, up_to)

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """Note that everything was read: from here on it is known what was sent by these keys.

        What an earlier program has encrypted and is not there now never will be, and what it has decrypted without
        having stored it is not asked for any more: their texts go.
        """
        agenda, held = self._agenda.of(group_id), self._groups.get(group_id)
        if held and 0 < held.up_to < last and not agenda.is_caught_up:
            with self._changing(group_id) as held:
                self._order.misses(held)
                held.up_to = last
        agenda.record_caught_up()
        if has_all and held and (self._texts.has_former(held, self._now()) or self._texts.read(held)):
            with self._vault.transaction():
                self._texts.drop_former(held, self._now())
                self._texts.drop_read(held, held.up_to)
        if held and self._order.is_sure(held) and self._texts.has_kept(held, self._now()):
            with self._vault.transaction():
                self._texts.drop_kept(held, self._now())

    def save_unsent(self, data: bytes) -> None:
        """Keep what is not sent, encrypted with a key that is made of the account's."""
        with self._vault.transaction():
            self._packages.save_unsent(data)

    def load_unsent(self) -> bytes:
        """Return what is kept so."""
        return self._packages.load_unsent()

    # Members

    def has_keys(self, group_id: UUID) -> bool:
        """Tell whether the user has the keys of a group."""
        held = self._groups.get(group_id)
        return held is not None and held.stage is Stage.IN

    @property
    def needs_key_packages(self) -> bool:
        """Whether those at the server are old."""
        return self._packages.are_due

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Make key packages; their private keys are on the disk when it returns."""
        return self._packages.make(regular, last_resort=last_resort)

    def create(self, group_id: UUID) -> NewGroup:
        """Begin a new group, with the user alone in it."""
        with self._changing(group_id) as held:
            held.group = MlsGroup.create(self._packages.own_leaf(), self._now(), policy=POLICY)
            held.renewed_at, held.missed = self._now(), 0
            self._order.enter(held)
            return NewGroup(held.group.group_info(), held.group.group_id.hex())

    def record_listed_key(self, listed: str) -> None:
        """Note the fingerprint that the server has for the account; "": none. Another device has uploaded another."""
        if listed:
            self._listed_keys.add(listed)

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Make a commit that adds a user. Raises NotReadyError, and EncryptionError for a key of somebody else."""
        with self._changing(group_id, "this user cannot be added") as held:
            package = decode_message(key_package)
            if not isinstance(package, KeyPackage) or package.leaf_node.credential.identity != user_id.bytes:
                raise EncryptionError("the server has given a key that is not this user's: nobody was added")
            made = self._ready(held).commit(self._now(), add=[package])
        return _change(made)

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Make a commit that removes a member; nothing if the keys are not there, or the member is not."""
        held = self._groups.get(group_id)
        member = held.group.find(user_id.bytes) if held and held.group and held.stage is Stage.IN else None
        if member is None:
            return MembershipChange(b"", b"")
        return self.commit(group_id, [member.leaf_index])

    def commit(self, group_id: UUID, remove: Sequence[int] = ()) -> MembershipChange:
        """Make a commit with new own keys, which removes leaves, and takes proposals along. Raises EncryptionError."""
        with self._changing(group_id, "the group cannot be changed") as held:
            made = self._ready(held).commit(self._now(), remove=remove)
        return _change(made)

    def join(self, group_id: UUID, group_info: bytes, *, anew: bool = False) -> ExternalCommit:
        """Make a commit by which the user comes in from outside; an own old leaf is removed. Raises EncryptionError.

        ``anew``: which commits there were is forgotten, since they led into another branch.
        """
        info = read_info(group_info)
        if info is None:
            raise EncryptionError("this group was made without encryption keys, or by a client that encrypts otherwise")
        with self._changing(group_id, "the group info that the server has is of no use") as held:
            self._order.give_up(held)
            if anew:
                self._groups.forget_commits(held)
            own = self._packages.own_leaf()
            group, commit = MlsGroup.join_external(group_info, own, self._now(), resync=True, policy=POLICY)
            held.group = group
            held.awaits(Awaited(group.epoch - 1, group.confirmation_tag), info.tag)
            held.renewed_at = self._now()
            self._groups.note_request(held, group.confirmation_tag)
            self._agenda.of(group_id).asked_at = self._agenda.clock()
        return ExternalCommit(commit, group.group_id.hex(), _fitting(group.group_info(), commit))

    def join_by_welcome(self, group_id: UUID, welcome: bytes, inviter: UUID | None = None) -> bool:
        """Take the state that a Welcome leads to. It counts once the commit that it belongs to has come.

        Who has signed it is told, loudly if it is not the ``inviter`` whom the server has named.
        """
        digest = hashlib.sha256(welcome).digest()
        held = self._groups.get(group_id)
        if held and held.welcome == digest:
            return True  # it was taken before, and the answer of the server was lost
        try:
            group, used = MlsGroup.join(welcome, self._packages.kept(), self._now(), policy=POLICY)
        except NotForUsError:
            return held is not None and held.stage is Stage.IN
        except MlsError:
            return True  # it is of no use: the user asks in
        try:
            with self._changing(group_id) as held:
                self._order.give_up(held)
                self._packages.used(used)
                held.group, held.welcome = group, digest
                held.awaits(Awaited(group.epoch - 1, group.confirmation_tag), b"")
                self._agenda.of(group_id).asked_at = self._agenda.clock()
                held.renewed_at = 0 if used.key_package.is_last_resort else self._now()
                self._order.decide(held)
        except EncryptionError:
            return True
        if group.welcomed_by:
            by = user_of(group.welcomed_by)
            is_named = inviter in (None, by)
            kind, sentence = ("welcomed", WELCOMED) if is_named else ("refused", WELCOMED_BY_ANOTHER)
            self._news.append(EncryptionNotice(group_id, kind, sentence, by))
        self._agenda.want(group_id, AWAITED_SECONDS)
        return True

    def groups(self) -> set[UUID]:
        """Return the groups of which something is kept."""
        return set(self._groups.ids())

    def forget(self, group_id: UUID) -> None:
        """Erase all that is here of a group."""
        if self._groups.get(group_id):
            with self._vault.transaction():
                self._groups.forget(group_id)
        self._agenda.forget(group_id)

    def reset_keys(self) -> None:
        """Begin with a new signature key. The states of all groups are erased: the user asks in again."""
        with self._vault.transaction():
            self._packages.replace_key()
            for group_id in self._groups.ids():
                held = self._groups.get_or_make(group_id)
                self._order.give_up(held)
                held.had_keys = False  # nothing is missed with the new ones, and no leaf is theirs yet
                self._groups.save(held)
        for group_id in self._groups.ids():
            self._news.append(EncryptionChanged(group_id))
            self.schedule_check(group_id)

    # What goes on by itself

    def schedule_check(self, group_id: UUID) -> None:
        """Have a group looked at."""
        self._agenda.want(group_id)

    @property
    def is_due(self) -> bool:
        """Whether a group is to be looked at now."""
        return bool(self._agenda.due())

    async def run_maintenance(self, client: "Client", groups: Sequence[Group]) -> set[UUID]:
        """Do what members' clients do by themselves."""
        return await self._keeper.run_maintenance(client, groups)

    def held(self, group_id: UUID) -> Held | None:
        """Return a group, to be looked at; ``changing`` changes it."""
        return self._groups.get(group_id)

    def is_outdated(self, held: Held, info: InfoHeader) -> bool:
        """Tell whether commits have come that a group info does not know, or that have won against its own."""
        is_old = self._groups.first_commit(held, info.epoch) is not None
        return is_old or self._groups.commit_into(held, info.epoch) not in (None, info.tag)

    def forget_commits(self, held: Held) -> None:
        """Forget the commits that have come while there were no keys: one of them may be rubbish."""
        with self._vault.transaction():
            self._groups.forget_commits(held)

    def is_passed(self, held: Held, info: InfoHeader) -> bool:
        """Tell whether the state of a group has been where a group info is."""
        return self._groups.went_through(held, info.tag)

    def is_senior(self, held: Held, user_id: UUID) -> bool:
        """Tell whether a user has not come in after this device."""
        return self._order.is_senior(held, user_id)

    def drop_state(self, group_id: UUID) -> None:
        """Give the state of a group up: it leads nowhere."""
        with self._changing(group_id) as held:
            self._order.give_up(held)
        self._news.append(EncryptionChanged(group_id))

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Tell whether the user's place, which was this device's, has the key of another one; note it."""
        held = self._groups.get(group_id)
        if held is None or not held.had_keys:
            return False
        key = key_in(group_info, self._user_id.bytes)
        if key is None or self._packages.made(key):
            return False  # the group info may be of the time before new keys
        if self._listed_keys and fingerprint(key) not in self._listed_keys:
            return False  # no device has logged in with that key: a member has made it up
        try:  # or anybody who gives the server something false could keep this device out
            MlsGroup.join_external(group_info, self._packages.own_leaf(), self._now(), resync=True, policy=POLICY)
        except MlsError:
            return False
        with self._changing(group_id) as held:
            self._order.replaced(held)
        self._news.append(EncryptionChanged(group_id))
        return True

    def _lost(self, group_id: UUID) -> None:
        """Tell that the state of a group cannot be used, and come in again."""
        self._news += [EncryptionNotice(group_id, "lost", LOST), EncryptionChanged(group_id)]
        self._agenda.want(group_id)

    @contextmanager
    def _changing(self, group_id: UUID, what_failed: str = "the keys of this group cannot be used") -> Iterator[Held]:
        """Change a group, all or nothing: what is changed is on the disk at the end.

        Whatever the data of the group leads to raises EncryptionError, so that only this group is affected. What the
        disk raises concerns all groups, and is raised as it is.
        """
        news = len(self._news)
        try:
            with self._vault.transaction():
                held = self._groups.get_or_make(group_id)
                yield held
                self._groups.save(held)
        except BaseException as error:
            self._groups.reload(group_id)
            self._people.reload()
            del self._news[news:]
            if not isinstance(error, Exception) or isinstance(error, (ClientError, OSError, *OF_THE_DISK)):
                raise
            raise EncryptionError(f"{what_failed}: {error}") from error

    def _ready(self, held: Held) -> MlsGroup:
        if held.stage is Stage.REPLACED:
            raise ReplacedError("another device of yours has taken the place of this one: /reset brings it back")
        if held.stage is not Stage.IN or held.group is None:
            self._agenda.want(held.group_id)
            raise NotReadyError("the keys of this group are not there yet: it goes on by itself")
        return held.group


def _change(made: Commitment) -> MembershipChange:
    welcome = made.welcome or b""
    return MembershipChange(made.message, _fitting(made.group_info, made.message, welcome), welcome)


def _fitting(group_info: bytes, *others: bytes) -> bytes:
    """Return a group info if it fits into one request with the others; otherwise b"".

    Then nobody comes in without an invite until the group is smaller, but members can be removed.
    """
    return group_info if sum(map(len, others)) + len(group_info) <= MOST_BYTES else b""
