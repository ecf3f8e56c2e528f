"""Protects and unprotects messages (RFC 9420 sections 6.1 to 6.3). Functions over immutable values."""

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from conclave.client.mls.codec import ByteReader, decode
from conclave.client.mls.crypto import expand_with_label, sign_with_label, verify_with_label
from conclave.client.mls.errors import ForgedError, InvalidError, MalformedMessageError, OwnMessageError
from conclave.client.mls.framing import (
    AuthenticatedContent,
    ContentType,
    FramedContent,
    FramedContentAuthData,
    PrivateMessage,
    PublicMessage,
    SenderType,
    WireFormat,
    decode_content,
    encode_content,
    member,
    to_be_signed,
)
from conclave.client.mls.secret_tree import RatchetKind, SecretTree
from conclave.client.mls.structs import Struct, Uint32, fixed
from conclave.client.mls.suites import CipherSuite

REUSE_GUARD_BYTES = 4
"""Size of a reuse guard, in bytes."""
MIN_PADDED_BYTES = 256


@dataclass(frozen=True)
class SenderData(Struct):
    """Identifies the key of a private message (section 6.3.2)."""

    leaf_index: Uint32
    generation: Uint32
    reuse_guard: Annotated[bytes, fixed(REUSE_GUARD_BYTES)]


def sign(
    suite: CipherSuite, wire_format: WireFormat, content: FramedContent, private: bytes, group_context: bytes
) -> bytes:
    """Return the signature over a content (section 6.1)."""
    return sign_with_label(suite, private, "FramedContentTBS", to_be_signed(wire_format, content, group_context))


def check_signature(
    suite: CipherSuite, authenticated: AuthenticatedContent, public: bytes, group_context: bytes
) -> None:
    """Check the signature over a content (section 6.1)."""
    tbs = to_be_signed(authenticated.wire_format, authenticated.content, group_context)
    if not verify_with_label(suite, public, "FramedContentTBS", tbs, authenticated.auth.signature):
        raise ForgedError("the signature of a message is wrong")


# Public messages (section 6.2)


def _membership_tag(
    suite: CipherSuite, authenticated: AuthenticatedContent, membership_key: bytes, group_context: bytes
) -> bytes:
    tbs = to_be_signed(authenticated.wire_format, authenticated.content, group_context)
    return suite.mac(membership_key, tbs + authenticated.auth.encode())


def protect_public(
    suite: CipherSuite, authenticated: AuthenticatedContent, membership_key: bytes, group_context: bytes
) -> PublicMessage:
    """Create a public message. Raises MalformedMessageError for application data (section 6)."""
    content = authenticated.content
    if content.content_type == ContentType.APPLICATION:
        raise MalformedMessageError("application data must be encrypted")
    if content.sender.sender_type != SenderType.MEMBER:
        return PublicMessage(content, authenticated.auth)
    tag = _membership_tag(suite, authenticated, membership_key, group_context)
    return PublicMessage(content, authenticated.auth, tag)


def unprotect_public(
    suite: CipherSuite, message: PublicMessage, membership_key: bytes, group_context: bytes
) -> AuthenticatedContent:
    """Check the membership tag of a public message, but not its signature."""
    content = message.content
    if content.content_type == ContentType.APPLICATION:
        raise InvalidError("application data is not encrypted")
    authenticated = AuthenticatedContent(WireFormat.PUBLIC_MESSAGE, content, message.auth)
    if message.membership_tag is not None:
        tag = _membership_tag(suite, authenticated, membership_key, group_context)
        if not hmac.compare_digest(message.membership_tag, tag):
            raise ForgedError("the membership tag of a message is wrong")
    return authenticated


# Private messages (section 6.3)


def padding_for(length: int) -> int:
    """Return the padding of a content: up to a multiple of an eighth of the next power of two, at least of 32.

    Existing clients use the same sizes, which reveal little about the content, and nothing about the client.
    """
    step = 1 << (max(MIN_PADDED_BYTES, 1 << length.bit_length()).bit_length() - 4)
    return (length | (step - 1)) + 1 - length


def sender_data_key(suite: CipherSuite, sender_data_secret: bytes, ciphertext: bytes) -> tuple[bytes, bytes]:
    """Return key and nonce of the sender data, from a sample of the ciphertext (section 6.3.2)."""
    sample = ciphertext[: suite.kdf.size]
    key = expand_with_label(suite, sender_data_secret, "key", sample, suite.aead.key)
    return key, expand_with_label(suite, sender_data_secret, "nonce", sample, suite.aead.nonce)


def _guarded(nonce: bytes, guard: bytes) -> bytes:
    return (
        bytes(one ^ other for one, other in zip(nonce[:REUSE_GUARD_BYTES], guard, strict=True))
        + nonce[REUSE_GUARD_BYTES:]
    )


def _kind(content_type: ContentType) -> RatchetKind:
    return RatchetKind.APPLICATION if content_type == ContentType.APPLICATION else RatchetKind.HANDSHAKE


def protect_private(
    suite: CipherSuite, authenticated: AuthenticatedContent, secret_tree: SecretTree, sender_data_secret: bytes
) -> tuple[PrivateMessage, SecretTree]:
    """Create a private message of a member; return it, and the secret tree without its key."""
    content = authenticated.content
    plaintext = encode_content(content.content) + authenticated.auth.encode()
    plaintext += bytes(padding_for(len(plaintext)))
    key, secret_tree = secret_tree.next_key(content.sender.index, _kind(content.content_type))
    guard = os.urandom(REUSE_GUARD_BYTES)
    header = content.group_id, content.epoch, content.content_type, content.authenticated_data
    aad = PrivateMessage(*header, b"", b"").content_aad()
    ciphertext = suite.aead.seal(key.key, _guarded(key.nonce, guard), aad, plaintext)
    data = SenderData(content.sender.index, key.generation, guard).encode()
    aad = PrivateMessage(*header, b"", b"").sender_data_aad()
    encrypted = suite.aead.seal(*sender_data_key(suite, sender_data_secret, ciphertext), aad, data)
    return PrivateMessage(*header, encrypted, ciphertext), secret_tree


def open_sender_data(suite: CipherSuite, message: PrivateMessage, sender_data_secret: bytes) -> SenderData:
    """Decrypt the sender data of a private message."""
    key, nonce = sender_data_key(suite, sender_data_secret, message.ciphertext)
    data = suite.aead.open(key, nonce, message.sender_data_aad(), message.encrypted_sender_data)
    return decode(data, SenderData.decode)


def unprotect_private(
    suite: CipherSuite,
    message: PrivateMessage,
    secret_tree: SecretTree,
    sender_data_secret: bytes,
    own_index: int,
    is_member: Callable[[int], bool],
) -> tuple[AuthenticatedContent, SecretTree]:
    """Decrypt a private message without checking its signature; return it, and the secret tree without its key.

    An own message is decrypted only if its key is unused: then it was not created from this state.
    """
    sender = open_sender_data(suite, message, sender_data_secret)
    if not is_member(sender.leaf_index):
        raise InvalidError("a message names a sender who is not in the group")
    if sender.leaf_index == own_index and sender.generation < secret_tree.generation(
        own_index, _kind(message.content_type)
    ):
        raise OwnMessageError("a message is the reader's own: its key was erased when it was sent")
    key, secret_tree = secret_tree.take(sender.leaf_index, _kind(message.content_type), sender.generation)
    nonce = _guarded(key.nonce, sender.reuse_guard)
    reader = ByteReader(suite.aead.open(key.key, nonce, message.content_aad(), message.ciphertext))
    content = decode_content(reader, message.content_type)
    auth = FramedContentAuthData.decode_for(reader, message.content_type)
    if any(reader.rest()):
        raise MalformedMessageError("the padding of a message is not all zeros")
    framed = FramedContent(
        message.group_id, message.epoch, member(sender.leaf_index), message.authenticated_data, content
    )
    return AuthenticatedContent(WireFormat.PRIVATE_MESSAGE, framed, auth), secret_tree
