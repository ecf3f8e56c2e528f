"""What turns text into payloads and back: where end-to-end encryption plugs in. The one here does not encrypt."""

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from conclave.wire.fields import KEY_PACKAGE_START


class UnreadableError(Exception):
    """A payload is not for this codec, or cannot be read by it."""


class Change(NamedTuple):
    """A change of a group's members. ``welcome`` is for those who are added; b"" if there is none."""

    commit: bytes
    group_info: bytes
    welcome: bytes = b""


class Codec(Protocol):
    """Makes and reads payloads. The server, and the rest of this library, take them as they are.

    It is called for a group's payloads in the order of their numbers, except for those that the server left out while
    its clock was in doubt: they come later. After a crash it may be asked for the last ones again. What the user sent
    is not decoded: its text is known; but after a crash it may be.
    """

    def encode(self, group_id: UUID, text: str) -> bytes:
        """Return the payload of a message."""
        ...

    def decode(self, group_id: UUID, sender_id: UUID, payload: bytes) -> str | None:
        """Return the text of a payload; None if it is none for people, as a commit. Raises UnreadableError."""
        ...

    def key_package(self) -> bytes:
        """Make a key package, by which others can add the user."""
        ...

    def begin(self, group_id: UUID) -> bytes:
        """Begin a new group; return its group info."""
        ...

    def add(self, group_id: UUID, key_packages: Sequence[bytes]) -> Change:
        """Return what adds the owners of key packages to a group."""
        ...

    def remove(self, group_id: UUID, user_id: UUID) -> Change:
        """Return what removes a member."""
        ...

    def join(self, group_id: UUID, group_info: bytes) -> bytes:
        """Return the commit by which the user joins a public group from outside."""
        ...

    def welcomed(self, group_id: UUID, welcome: bytes) -> None:
        """Take part in a group from a welcome on. Raises UnreadableError."""
        ...

    def forget(self, group_id: UUID) -> None:
        """Forget a group: the user is not in it any more."""
        ...


class PlaintextCodec:
    """Text as it is, in UTF-8. IT DOES NOT ENCRYPT: the server and its operator can read everything.

    What MLS would have in commits, welcomes and group info is a word here.
    """

    _CONTROL = b"\x00conclave plaintext "

    def encode(self, group_id: UUID, text: str) -> bytes:
        """Return the text in UTF-8. Raises ValueError for a text that is empty or begins with NUL."""
        if not text or text.startswith("\x00"):
            raise ValueError("a message must not be empty, nor begin with NUL")
        return text.encode()

    def decode(self, group_id: UUID, sender_id: UUID, payload: bytes) -> str | None:
        """Return the text; None for what this codec gives in place of commits. Raises UnreadableError."""
        if payload.startswith(self._CONTROL):
            return None
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            raise UnreadableError("no text: perhaps it is encrypted") from error
        if text.startswith("\x00"):
            raise UnreadableError("no text: perhaps it is a message of MLS")
        return text

    def key_package(self) -> bytes:
        """Make a key package of chance: there is no key in it."""
        return KEY_PACKAGE_START + self._CONTROL + os.urandom(16)

    def begin(self, group_id: UUID) -> bytes:
        """Return a word in place of group info."""
        return self._CONTROL + b"group info"

    def add(self, group_id: UUID, key_packages: Sequence[bytes]) -> Change:
        """Return words in place of MLS messages."""
        return Change(self._CONTROL + b"add", self.begin(group_id), self._CONTROL + b"welcome")

    def remove(self, group_id: UUID, user_id: UUID) -> Change:
        """Return words in place of MLS messages."""
        return Change(self._CONTROL + b"remove", self.begin(group_id))

    def join(self, group_id: UUID, group_info: bytes) -> bytes:
        """Return a word in place of an external commit."""
        return self._CONTROL + b"join"

    def welcomed(self, group_id: UUID, welcome: bytes) -> None:
        """Do nothing: there are no keys."""

    def forget(self, group_id: UUID) -> None:
        """Do nothing: there are no keys."""
