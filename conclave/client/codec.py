"""The interface of codecs, which turn texts into payloads and back, and a codec that does not encrypt."""

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
    """A change of a group's members. ``welcome``: for the added members; b"" if there are none.

    All fields are b"" if there is nothing to change, or if this client lacks the keys: then another member's client
    makes the change later.
    """

    commit: bytes
    group_info: bytes
    welcome: bytes = b""


class NewGroup(NamedTuple):
    """A new group."""

    group_info: bytes
    mls_group_id: str = ""
    """Hexadecimal; "" if there is none."""


class ExternalCommit(NamedTuple):
    """A commit by which the user joins a group."""

    commit: bytes
    mls_group_id: str = ""
    """Hexadecimal; "" if there is none."""
    group_info: bytes = b""
    """The group info of the epoch after the commit."""


@dataclass(frozen=True)
class NewKeyPackages:
    """Key packages to upload."""

    regular: tuple[bytes, ...]
    last_resort: bytes | None
    fingerprint: str = ""
    """The fingerprint of the key that signed them; "" if there is none."""
    replaces_all: bool = False
    """Whether to delete the server's key packages first, since they belong to former keys."""


@dataclass(frozen=True)
class Readable:
    """A decoded message to show to the user."""

    message: FetchedMessage
    text: str | None = field(repr=False)
    """None if it cannot be decrypted."""


@dataclass(frozen=True)
class PendingResend:
    """A sent text that not all members could decrypt."""

    key: int
    """The key to pass to ``drop_resend``."""
    group_id: UUID
    text: str = field(repr=False)
    self_destruct_seconds: int
    original: int
    """The number of the first message with this text."""


class Codec(Protocol):
    """Encodes and decodes payloads, which are opaque to the server and to the rest of this library.

    Payloads are stored before they are returned. Only ``run_maintenance`` sends requests. Methods raise only the
    errors that they document.
    """

    # State for the user interface

    @property
    def encrypts(self) -> bool:
        """Whether messages are encrypted end to end."""
        ...

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the user's own key, 64 hexadecimal digits; "" if there is none."""
        ...

    def view(self, group_id: UUID) -> GroupView:
        """Return the current state of a group's encryption."""
        ...

    def known_key(self, user_id: UUID) -> KnownKey | None:
        """Return the last known key of a user; None if none is known."""
        ...

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        """Record that the user has verified a key. Return False if it has changed since."""
        ...

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        """Record that the user accepts a changed key unverified. Return False if it has changed since."""
        ...

    def take_news(self) -> list[News]:
        """Return the queued news, and clear the queue."""
        ...

    # Messages

    def encode(self, group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
        """Return the payload of a message. Raises ValueError for an invalid text, and NotReadyError.

        ``send_id``: identifies the message in all attempts to send it, of which the server stores one.
        """
        ...

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """Discard a payload that was not sent. ``other_attempt_stored``: another attempt was stored."""
        ...

    def pending_resends(self) -> list[PendingResend]:
        """Return the texts to resend."""
        ...

    def encode_resend(self, resend: PendingResend) -> bytes:
        """Return the payload of a text to resend, ignored by members who read the original. Raises NotReadyError."""
        ...

    def drop_resend(self, key: int) -> None:
        """Drop a text that was resent, or must not be resent."""
        ...

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return the numbers of own messages whose texts are kept for resending."""
        ...

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Erase the stored texts of messages; ``are_taken_back``: also take back their resent copies."""
        ...

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return the groups and numbers of resent copies to take back."""
        ...

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """Record that a resent copy was taken back."""
        ...

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return the numbers of known resent copies of a message."""
        ...

    def needs_members(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> bool:
        """Return whether ``update_members`` is needed before these messages, to check who may change the group."""
        ...

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Update the members and admins from the server's list of the user's groups."""
        ...

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Decode messages, in the server's order; return the messages for the user.

        A group's messages are passed in order of their numbers, except for those that the server left out while its
        clock was in doubt. After a crash the last ones may be passed again, until ``record_stored`` is called.
        """
        ...

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """Record that the history has stored all decoded messages up to a number. Also called before each fetch."""
        ...

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """Record that all messages of a group were decoded. Nothing is encrypted before that.

        ``has_all``: False if the server left out messages while its clock was in doubt. ``last``: the group's greatest
        number before that, as reported by the server; 0: unknown.
        """
        ...

    def save_unsent(self, data: bytes) -> None:
        """Store unsent input, encrypted, instead of the former input; b"" deletes it.

        A codec without keys stores nothing. Raises DiskError.
        """
        ...

    def load_unsent(self) -> bytes:
        """Return the stored unsent input; b"" if there is none."""
        ...

    # Members

    def has_keys(self, group_id: UUID) -> bool:
        """Return whether the client has the keys of a group. If not, a Welcome may contain them."""
        ...

    def record_listed_key(self, listed: str) -> None:
        """Record the fingerprint that the server lists for the account, before it is replaced; "" if none."""
        ...

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Create key packages, with which others can add the user."""
        ...

    @property
    def needs_key_packages(self) -> bool:
        """Whether to replace the key packages on the server, before they expire."""
        ...

    def create(self, group_id: UUID) -> NewGroup:
        """Create a group."""
        ...

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Return a commit that adds a user, which takes effect when the server delivers it. Raises EncryptionError."""
        ...

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Return a commit that removes a member, which takes effect when the server delivers it."""
        ...

    def join(self, group_id: UUID, group_info: bytes) -> ExternalCommit:
        """Return an external commit for a group. Raises EncryptionError."""
        ...

    def join_by_welcome(self, group_id: UUID, welcome: bytes, inviter: UUID | None = None) -> bool:
        """Join a group by a Welcome. Return False if it is for other keys.

        ``inviter``: the inviter according to the server; None if unknown.
        """
        ...

    def groups(self) -> set[UUID]:
        """Return the groups with local data, to erase those that the user has left elsewhere."""
        ...

    def forget(self, group_id: UUID) -> None:
        """Erase the data of a group that the user has left."""
        ...

    def drop_state(self, group_id: UUID) -> None:
        """Drop the state of a group, to join it again."""
        ...

    def reset_keys(self) -> None:
        """Replace all keys, and rejoin all groups."""
        ...

    # Automatic work

    def use_time(self, now: Callable[[], int]) -> None:
        """Use ``now`` as the clock. It returns the server's Unix seconds, since the machine's clock may be wrong."""
        ...

    def schedule_check(self, group_id: UUID) -> None:
        """Schedule a check of a group, whose members may have changed."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether ``run_maintenance`` has work to do now."""
        ...

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Run the automatic work in groups, such as rejoining; return the groups to fetch afterwards.

        ``groups``: the server's current list. Raises SessionOverError; other failures are retried later.
        """
        ...

    def close(self) -> None:
        """Close the codec's files."""
        ...


class PlaintextCodec:
    """Sends texts in UTF-8. IT DOES NOT ENCRYPT: the server and its operator can read everything.

    Commits, Welcomes and group infos are placeholder words.
    """

    _CONTROL = b"\x00conclave plaintext "

    encrypts = False
    fingerprint = ""
    needs_key_packages = False
    is_due = False

    def view(self, group_id: UUID) -> GroupView:
        """Return that nothing is encrypted."""
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
            raise ValueError("a message must not be empty or begin with NUL")
        return text.encode()

    def discard_payload(self, group_id: UUID, payload: bytes, *, other_attempt_stored: bool = False) -> None:
        """Do nothing: sent texts are not kept."""

    def pending_resends(self) -> list[PendingResend]:
        """Return nothing: all members can read a text."""
        return []

    def encode_resend(self, resend: PendingResend) -> bytes:
        """Return the text in UTF-8."""
        return self.encode(resend.group_id, resend.text)

    def drop_resend(self, key: int) -> None:
        """Do nothing."""

    def kept_numbers(self, group_id: UUID) -> list[int]:
        """Return nothing: sent texts are not kept."""
        return []

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        """Do nothing: sent texts are not kept."""

    def pending_take_backs(self) -> list[tuple[UUID, int]]:
        """Return nothing: texts are never resent."""
        return []

    def record_taken_back(self, group_id: UUID, number: int) -> None:
        """Do nothing."""

    def repeats_of(self, group_id: UUID, number: int) -> list[int]:
        """Return nothing: texts are never resent."""
        return []

    def needs_members(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> bool:
        """Return False: there is nothing to check."""
        return False

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Do nothing."""

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        """Return the texts; placeholders of commits are skipped."""
        return [
            Readable(each, self._text(each.mls_message))
            for each in messages
            if not each.mls_message.startswith(self._CONTROL)
        ]

    def _text(self, payload: bytes) -> str | None:
        """Return a text; None if it is invalid, for example encrypted."""
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return None
        return None if text.startswith("\x00") else text

    def record_stored(self, group_id: UUID, up_to: int) -> None:
        """Do nothing: decoded texts are not kept."""

    def record_caught_up(self, group_id: UUID, *, has_all: bool = True, last: int = 0) -> None:
        """Do nothing: there are no keys."""

    def save_unsent(self, data: bytes) -> None:
        """Do nothing: there is no key to encrypt it with."""

    def load_unsent(self) -> bytes:
        """Return nothing."""
        return b""

    def has_keys(self, group_id: UUID) -> bool:
        """Return True: no keys are needed."""
        return True

    def record_listed_key(self, listed: str) -> None:
        """Do nothing: there are no keys."""

    def key_packages(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Return key packages of random bytes, without keys."""
        return NewKeyPackages(
            tuple(self._key_package() for _ in range(regular)), self._key_package() if last_resort else None
        )

    def _key_package(self) -> bytes:
        return KEY_PACKAGE_START + self._CONTROL + os.urandom(16)

    def create(self, group_id: UUID) -> NewGroup:
        """Return a placeholder of a group info."""
        return NewGroup(self._CONTROL + b"group info")

    def add(self, group_id: UUID, user_id: UUID, key_package: bytes) -> MembershipChange:
        """Return placeholders of MLS messages."""
        return MembershipChange(self._CONTROL + b"add", self._CONTROL + b"group info", self._CONTROL + b"welcome")

    def remove(self, group_id: UUID, user_id: UUID) -> MembershipChange:
        """Return placeholders of MLS messages."""
        return MembershipChange(self._CONTROL + b"remove", self._CONTROL + b"group info")

    def join(self, group_id: UUID, group_info: bytes) -> ExternalCommit:
        """Return a placeholder of an external commit."""
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
        """Do nothing: nothing depends on the time."""

    def schedule_check(self, group_id: UUID) -> None:
        """Do nothing: there are no keys."""

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Do nothing: there are no keys."""
        return set()

    def close(self) -> None:
        """Do nothing: nothing is open."""
