"""Passwords, the same on every keyboard. Pure."""

import unicodedata
from collections.abc import Awaitable, Callable
from typing import TypeVar

from conclave.client.errors import WrongPasswordError

T = TypeVar("T")


def composed(password: str) -> str:
    """Return a password in the normal form NFC: some keyboards send é as one sign, others as two (RFC 8265, 4.2)."""
    return unicodedata.normalize("NFC", password)


async def tried(password: str, ask: Callable[[str], Awaitable[T]]) -> T:
    """Ask with a password in NFC; if that is wrong, as it was typed: other clients may have set it so."""
    try:
        return await ask(composed(password))
    except WrongPasswordError:
        if composed(password) == password:
            raise
    return await ask(password)
