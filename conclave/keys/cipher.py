"""Encrypts the body of a message under its key, bound to its group and number: AES-256-GCM.

A body that was altered, or moved to another message, cannot be decrypted. Each has a random nonce, although a key is
meant for one message only: a number may be assigned twice after a restore.
"""

import os
import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
"""The length of the nonce, which precedes the ciphertext."""

OVERHEAD_BYTES = NONCE_BYTES + 16
"""Encryption adds 28 bytes: the nonce, and the tag at the end."""

_ASSOCIATED_DATA = struct.Struct(">16sQ")
"""The associated data: group id, sequence number."""


class AlteredError(Exception):
    """A body was altered, or belongs to another message."""


@cache
def library() -> "tuple[type[AESGCM], type[InvalidTag]]":
    """Return the cipher, and its exception for altered data. The first call imports them: 20 ms, 7 MB."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - expensive, and not always needed
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM, InvalidTag


def encrypt(key: bytes, group_id: bytes, number: int, body: bytes) -> bytes:
    """Encrypt ``body``. ``key``: 32 bytes; ``group_id``: 16 bytes."""
    return encrypt_all([key], [(group_id, number)], [body])[0]


def encrypt_all(keys: Sequence[bytes], locations: Sequence[tuple[bytes, int]], bodies: Sequence[bytes]) -> list[bytes]:
    """Encrypt the bodies of several messages. ``locations``: group ids and sequence numbers."""
    aes_gcm, _ = library()
    random = os.urandom(NONCE_BYTES * len(keys))  # one call: each costs as much as encrypting half a KiB
    ciphertexts = []
    for offset, key, location, body in zip(range(0, len(random), NONCE_BYTES), keys, locations, bodies, strict=True):
        nonce = random[offset : offset + NONCE_BYTES]
        ciphertexts.append(nonce + aes_gcm(key).encrypt(nonce, body, _ASSOCIATED_DATA.pack(*location)))
    return ciphertexts


def decrypt(key: bytes, group_id: bytes, number: int, ciphertext: bytes) -> bytes:
    """Return the body. Raises AlteredError if it was altered, or belongs to another message."""
    return decrypt_all([key], group_id, [number], [ciphertext])[0] or b""  # None only without a key


def decrypt_all(
    keys: Sequence[bytes | None], group_id: bytes, numbers: Sequence[int], ciphertexts: Sequence[bytes]
) -> list[bytes | None]:
    """Return the bodies of messages of a group; None where the key is None.

    Raises AlteredError if a body was altered, or belongs to another message.
    """
    aes_gcm, invalid_tag = library()
    decrypted: list[bytes | None] = []
    number = 0
    try:
        for key, number, body in zip(keys, numbers, ciphertexts, strict=True):
            associated_data = _ASSOCIATED_DATA.pack(group_id, number)
            decrypted.append(
                None if key is None else aes_gcm(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], associated_data)
            )
    except (invalid_tag, ValueError) as error:
        raise AlteredError(f"message {number} of group {group_id.hex()} was altered") from error
    return decrypted
