"""What turns text into payloads and back: where end-to-end encryption plugs in. The one here does not encrypt."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from conclave.client.encryption.view import PLAIN, GroupView, KnownKey
from conclave.client.events import News
from conclave.wire.fields import KEY_PACKAGE_START
from conclave.wire.results import FetchedMessage, GroupDetails

if TYPE_CHECKING:
    from conclave.client.api import Client


class MembershipChange(NamedTuple):
    """A change of a group's members. ``welcome`` is for those who are added; b"" if there is none.

    All is b"" if there is nothing to change, or the keys for it are not there: the members' clients make up for it.
    """

    commit: bytes
    group_info: bytes
    welcome: bytes = b""


class NewGroup(NamedTuple):
    """A group that begins."""

    group_info: bytes
    mls_group_id: str = ""
    """Hexadecimal; "" if there is none."""


class ExternalCommit(NamedTuple):
    """What brings the user into a group from outside."""

    commit: bytes
    mls_group_id: str = ""
    """As that of a beginning."""
    group_info: bytes = b""
    """That of the epoch to which the commit leads."""


@dataclass(frozen=True)
class NewKeyPackages:
    """Key packages to upload."""

    regular: tuple[bytes, ...]
    last_resort: bytes | None
    fingerprint: str = ""
    """Of the key that they are signed with; "" if there is none."""
    replaces_all: bool = False
    """What the server has is of former keys, and is to be deleted before."""


@dataclass(frozen=True)
class Readable:
    """A message that is for people."""

    message: FetchedMessage
    text: str | None = field(repr=False)
    """None if it cannot be read."""


@dataclass(frozen=True)
class PendingResend:
    """A text that was sent, and came after its keys had passed, so that not everybody could read it."""

    key: int
    """What ``sent_again`` takes."""
    group_id: UUID
    text: str = field(repr=False)
    self_destruct_seconds: int
    original: int
    """The number under which it came first."""


class Codec(Protocol):
    """Makes and reads payloads. The server, and the rest of this library, take them as they are.

    What it returns to be sent it has stored before. It asks the server for nothing, but in ``settle``. No method but
    those that say so raises anything that a client could do something about.
    """

    # What is shown

    @property
    def encrypts(self) -> bool:
        """Whether the server cannot read what is sent."""
        ...

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the user's own key, 64 hexadecimal digits; "" if there is none."""
        ...

    def view(self, group_id: UUID) -> GroupView:
        """Return a group's encryption as it is now."""
        ...

    def known_key(self, user_id: UUID) -> KnownKey | None:
        """Return the key of a person as it was seen last; None if it was never seen."""
        ...

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        """Note that the user has compared a key. False if it is another one by now."""
        ...

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        """Note that the user takes a changed key without having compared it. False if it is another one by now."""
        ...

    def take_news(self) -> list[News]:
        """Return what people should know, and was not told."""
        ...

    # Messages

    def encode(self, group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
        """Return the payload of a message. Raises ValueError for a text that cannot be sent, and NotReadyError.

        ``send_id``: the same for each try to send it, of which the server stores one.
        """
        ...

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """A payload was not sent after all. ``has_come``: since the server has stored, and served, another try."""
        ...

    def pending_resends(self) -> list[PendingResend]:
        """Return texts that have to be sent anew."""
        ...

    def encode_resend(self, again: PendingResend) -> bytes:
        """Return the payload of one of them: who could read it the first time drops it. Raises NotReadyError."""
        ...

    def drop_resend(self, key: int) -> None:
        """One of them was sent anew, or is not to be."""
        ...

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return the numbers of the messages of which something is kept, which may have to be sent anew."""
        ...

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Erase what is kept of messages that are gone; ``are_taken_back``: so is to be what was sent anew of them."""
        ...

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return the groups and numbers of messages that are there, and are to be taken back for that reason."""
        ...

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """A message that was sent anew is taken back."""
        ...

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return the numbers under which the text of a message was sent anew, as far as it was read before."""
        ...

    def needs_members(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> bool:
        """Tell whether ``note_members`` is to come before these messages: who changes the group has to be judged."""
        ...

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Take the user's groups, as the server lists them now."""
        ...

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Take what the server hands out, in its order; return what is for people.

        It is called for a group's messages in the order of their numbers, except for those that the server left out
        while its clock was in doubt: they come later. After a crash it may be asked for the last ones again, until
        ``stored`` says that the history has them.
        """
        ...

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """The history has all that was decoded up to a number. It is said before each fetch too."""
        ...

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """All that the server has of a group was handed over. Nothing is encrypted before that.

        ``has_all``: False if the server left something out while its clock was in doubt, which comes later. ``last``:
        the greatest number that a message of the group had got before that, as far as the server tells; 0: it does not.
        """
        ...

    def save_unsent(self, data: bytes) -> None:
        """Keep what was typed and is not sent, encrypted, in place of what was kept before; b"": nothing.

        A codec that has no key to encrypt with keeps nothing. Raises DiskError.
        """
        ...

    def load_unsent(self) -> bytes:
        """Return what is kept so; b"": nothing."""
        ...

    # Members

    def has_keys(self, group_id: UUID) -> bool:
        """Tell whether there are keys of a group; if not, a welcome may have them."""
        ...

    def record_listed_key(self, listed: str) -> None:
        """Take the fingerprint that the server has for the account, before it is replaced; "" if it has none."""
        ...

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Make key packages, by which others can add the user."""
        ...

    @property
    def needs_key_packages(self) -> bool:
        """Whether those at the server should be replaced before they are too old."""
        ...

    def create(self, group_id: UUID) -> NewGroup:
        """Begin a new group."""
        ...

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Return what adds a user to a group. It counts once its commit comes back. Raises EncryptionError."""
        ...

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Return what removes a member. It counts once its commit comes back."""
        ...

    def join(self, group_id: UUID, group_info: bytes) -> ExternalCommit:
        """Return what brings the user into a group from outside. Raises EncryptionError."""
        ...

    def join_by_welcome(self, group_id: UUID, welcome: bytes, inviter: UUID | None = None) -> bool:
        """Take part in a group from a welcome on. False if it is not for these keys, and may be for others.

        ``inviter``: who has invited, as the user was told; None if that is not known any more.
        """
        ...

    def groups(self) -> set[UUID]:
        """Return the groups of which something is kept: what the user has left elsewhere is forgotten by it."""
        ...

    def forget(self, group_id: UUID) -> None:
        """Forget a group: the user is not in it any more."""
        ...

    def drop_state(self, group_id: UUID) -> None:
        """Give the keys of a group up, which lead nowhere: the user comes in anew."""
        ...

    def reset_keys(self) -> None:
        """Begin with new keys, and ask into all groups anew."""
        ...

    # What goes on by itself

    def use_time(self, now: Callable[[], int]) -> None:
        """Take the time from ``now``, Unix seconds of the server: a clock of this machine may be wrong."""
        ...

    def schedule_check(self, group_id: UUID) -> None:
        """Members of a group may have changed: have it looked at."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether ``settle`` has something to do now."""
        ...

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Do what members' clients do by themselves; return the groups that are to be fetched after that.

        ``groups``: the user's, as the server lists them now. Raises SessionOverError; whatever else fails is tried
        again later.
        """
        ...

    def close(self) -> None:
        """Close what it has open."""
        ...


class PlaintextCodec:
    """Text as it is, in UTF-8. IT DOES NOT ENCRYPT: the server and its operator can read everything.

    What MLS would have in commits, welcomes and group info is a word here.
    """

    _CONTROL = b"\x00conclave plaintext "

    encrypts = False
    fingerprint = ""
    needs_key_packages = False
    is_due = False

    def view(self, group_id: UUID) -> GroupView:
        """Say that nothing is encrypted."""
        return PLAIN

    def known_key(self, user_id: UUID) -> KnownKey | None:
        """Return None: there are no keys."""
        return None

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        """Return False: there are no keys."""
        return False

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        """Return False: there are no keys."""
        return False

    def take_news(self) -> list[News]:
        """Return nothing."""
        return []

    def encode(self, group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
        """Return the text in UTF-8. Raises ValueError for a text that is empty or begins with NUL."""
        if not text or text.startswith("\x00"):
            raise ValueError("a message must not be empty, nor begin with NUL")
        return text.encode()

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """Do nothing: nothing is kept of what is sent."""

    def pending_resends(self) -> list[PendingResend]:
        """Return nothing: a text can always be read."""
        return []

    def encode_resend(self, again: PendingResend) -> bytes:
        """Return the text in UTF-8."""
        return self.encode(again.group_id, again.text)

    def drop_resend(self, key: int) -> None:
        """Do nothing."""

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return nothing: nothing is kept of what is sent."""
        return []

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Do nothing: nothing is kept of what is sent."""

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return nothing: nothing has to be sent anew."""
        return []

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """Do nothing."""

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return nothing: nothing has to be sent anew."""
        return []

    def needs_members(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> bool:
        """Return False: there is nothing to judge."""
        return False

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Do nothing."""

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Return the texts, but not what this codec gives in place of commits."""
        return [
            Readable(each, self._text(each.mls_message))
            for each in messages
            if not each.mls_message.startswith(self._CONTROL)
        ]

    def _text(self, payload: bytes) -> str | None:
        """Return a text; None if it is none: perhaps it is encrypted."""
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return None
        return None if text.startswith("\x00") else text

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """Do nothing: nothing is kept of what was decoded."""

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """Do nothing: there are no keys."""

    def save_unsent(self, data: bytes) -> None:
        """Do nothing: there is no key to encrypt it with."""

    def load_unsent(self) -> bytes:
        """Return nothing."""
        return b""

    def has_keys(self, group_id: UUID) -> bool:
        """Return True: none are needed."""
        return True

    def record_listed_key(self, listed: str) -> None:
        """Do nothing: there are no keys."""

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Make key packages of chance: there is no key in them."""
        return NewKeyPackages(
            tuple(self._key_package() for _ in range(regular)), self._key_package() if last_resort else None
        )

    def _key_package(self) -> bytes:
        return KEY_PACKAGE_START + self._CONTROL + os.urandom(16)

    def create(self, group_id: UUID) -> NewGroup:
        """Return a word in place of group info."""
        return NewGroup(self._CONTROL + b"group info")

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Return words in place of MLS messages."""
        return MembershipChange(self._CONTROL + b"add", self._CONTROL + b"group info", self._CONTROL + b"welcome")

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Return words in place of MLS messages."""
        return MembershipChange(self._CONTROL + b"remove", self._CONTROL + b"group info")

    def join(self, group_id: UUID, group_info: bytes) -> ExternalCommit:
        """Return a word in place of an external commit."""
        return ExternalCommit(self._CONTROL + b"join")

    def join_by_welcome(self, group_id: UUID, welcome: bytes, inviter: UUID | None = None) -> bool:
        """Do nothing: there are no keys."""
        return True

    def groups(self) -> set[UUID]:
        """Return nothing: there are no keys."""
        return set()

    def forget(self, group_id: UUID) -> None:
        """Do nothing: there are no keys."""

    def drop_state(self, group_id: UUID) -> None:
        """Do nothing: there are no keys."""

    def reset_keys(self) -> None:
        """Do nothing: there are no keys."""

    def use_time(self, now: Callable[[], int]) -> None:
        """Do nothing: there is nothing that has a time."""

    def schedule_check(self, group_id: UUID) -> None:
        """Do nothing: there are no keys."""

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Do nothing: there are no keys."""
        return set()

    def close(self) -> None:
        """Do nothing: nothing is open."""
