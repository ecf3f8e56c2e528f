"""Message framing (RFC 9420 section 6): content, sender, group and epoch, and their authentication."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Self, TypeAlias

from conclave.client.mls.codec import ByteReader, opaque, uint8, uint16, uint32, uint64
from conclave.client.mls.errors import MalformedMessageError, convert_errors
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.nodes import MLS10
from conclave.client.mls.proposals import Commit, Proposal, decode_proposal, encode_proposal
from conclave.client.mls.structs import Epoch, Opaque, Short, Struct, named
from conclave.client.mls.welcome import GroupInfo, Welcome


class WireFormat(IntEnum):
    """Types of an MLSMessage (section 17.2)."""

    PUBLIC_MESSAGE = 1
    PRIVATE_MESSAGE = 2
    WELCOME = 3
    GROUP_INFO = 4
    KEY_PACKAGE = 5


class ContentType(IntEnum):
    """Types of content."""

    APPLICATION = 1
    PROPOSAL = 2
    COMMIT = 3


class SenderType(IntEnum):
    """Types of senders."""

    MEMBER = 1
    EXTERNAL = 2
    NEW_MEMBER_PROPOSAL = 3
    NEW_MEMBER_COMMIT = 4


WITH_INDEX = (SenderType.MEMBER, SenderType.EXTERNAL)
BOUND_TO_GROUP = (SenderType.MEMBER, SenderType.NEW_MEMBER_COMMIT)
"""Senders whose signature covers the group context, which other senders do not have."""


@dataclass(frozen=True)
class Sender:
    """A sender. ``index``: the leaf index of a member, or the index in the list of external senders."""

    sender_type: SenderType
    index: int = 0

    def encode(self) -> bytes:
        """Encode."""
        return uint8(self.sender_type) + (uint32(self.index) if self.sender_type in WITH_INDEX else b"")

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        kind = reader.enum(SenderType, reader.uint8())
        return cls(kind, reader.uint32()) if kind in WITH_INDEX else cls(kind)


def member(leaf_index: int) -> Sender:
    """Return the member at a leaf as a sender."""
    return Sender(SenderType.MEMBER, leaf_index)


Content: TypeAlias = bytes | Proposal | Commit
"""The content of a message: application data, a proposal or a commit."""


def content_type_of(content: Content) -> ContentType:
    """Return the type of a content."""
    if isinstance(content, bytes):
        return ContentType.APPLICATION
    return ContentType.COMMIT if isinstance(content, Commit) else ContentType.PROPOSAL


def encode_content(content: Content) -> bytes:
    """Encode a content without its type."""
    if isinstance(content, bytes):
        return opaque(content)
    return content.encode() if isinstance(content, Commit) else encode_proposal(content)


def decode_content(reader: ByteReader, content_type: ContentType) -> Content:
    """Decode a content of a given type."""
    if content_type == ContentType.APPLICATION:
        return reader.opaque()
    return Commit.decode(reader) if content_type == ContentType.COMMIT else decode_proposal(reader)


@dataclass(frozen=True, repr=False)
class FramedContent:
    """A content with its group, epoch and sender."""

    group_id: bytes
    epoch: int
    sender: Sender
    authenticated_data: bytes
    content: Content

    @property
    def content_type(self) -> ContentType:
        """The type of the content."""
        return content_type_of(self.content)

    def encode(self) -> bytes:
        """Encode."""
        head = opaque(self.group_id) + uint64(self.epoch) + self.sender.encode() + opaque(self.authenticated_data)
        return head + uint8(self.content_type) + encode_content(self.content)

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        header = reader.short(), reader.epoch(), Sender.decode(reader), reader.opaque()
        return cls(*header, decode_content(reader, reader.enum(ContentType, reader.uint8())))


@dataclass(frozen=True)
class FramedContentAuthData:
    """The authentication of a content (section 6.1). Commits have a confirmation tag."""

    signature: bytes
    confirmation_tag: bytes | None = None

    def encode(self) -> bytes:
        """Encode."""
        return opaque(self.signature) + (b"" if self.confirmation_tag is None else opaque(self.confirmation_tag))

    @classmethod
    def decode_for(cls, reader: ByteReader, content_type: ContentType) -> Self:
        """Decode the authentication of a content of a given type."""
        signature = reader.opaque()
        return cls(signature, reader.opaque() if content_type == ContentType.COMMIT else None)


@dataclass(frozen=True)
class AuthenticatedContent:
    """A content with its authentication, as used in hashes."""

    wire_format: WireFormat
    content: FramedContent
    auth: FramedContentAuthData

    def encode(self) -> bytes:
        """Encode."""
        return uint16(self.wire_format) + self.content.encode() + self.auth.encode()

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        wire_format, content = reader.enum(WireFormat, reader.uint16()), FramedContent.decode(reader)
        return cls(wire_format, content, FramedContentAuthData.decode_for(reader, content.content_type))

    def confirmed_input(self) -> bytes:
        """ConfirmedTranscriptHashInput (section 8.2)."""
        return uint16(self.wire_format) + self.content.encode() + opaque(self.auth.signature)


def to_be_signed(wire_format: WireFormat, content: FramedContent, group_context: bytes) -> bytes:
    """FramedContentTBS (section 6.1)."""
    tbs = uint16(MLS10) + uint16(wire_format) + content.encode()
    return tbs + group_context if content.sender.sender_type in BOUND_TO_GROUP else tbs


@dataclass(frozen=True)
class PublicMessage:
    """An unencrypted message (section 6.2). Messages of members have a membership tag."""

    content: FramedContent
    auth: FramedContentAuthData
    membership_tag: bytes | None = None

    def encode(self) -> bytes:
        """Encode."""
        tag = b"" if self.membership_tag is None else opaque(self.membership_tag)
        return self.content.encode() + self.auth.encode() + tag

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        content = FramedContent.decode(reader)
        auth = FramedContentAuthData.decode_for(reader, content.content_type)
        return cls(content, auth, reader.opaque() if content.sender.sender_type == SenderType.MEMBER else None)


@dataclass(frozen=True)
class PrivateMessage(Struct):
    """An encrypted message (section 6.3)."""

    group_id: Short
    epoch: Epoch
    content_type: Annotated[ContentType, named(ContentType)]
    authenticated_data: Opaque
    encrypted_sender_data: Opaque
    ciphertext: Opaque

    def sender_data_aad(self) -> bytes:
        """SenderDataAAD (section 6.3.2)."""
        return self.encode_first(3)

    def content_aad(self) -> bytes:
        """PrivateContentAAD (section 6.3.1)."""
        return self.encode_first(4)


Body: TypeAlias = PublicMessage | PrivateMessage | Welcome | GroupInfo | KeyPackage

BODY_CLASSES: dict[WireFormat, type[Body]] = {
    WireFormat.PUBLIC_MESSAGE: PublicMessage,
    WireFormat.PRIVATE_MESSAGE: PrivateMessage,
    WireFormat.WELCOME: Welcome,
    WireFormat.GROUP_INFO: GroupInfo,
    WireFormat.KEY_PACKAGE: KeyPackage,
}


def encode_message(body: Body) -> bytes:
    """Encode an MLSMessage (section 6)."""
    wire_format = next(number for number, kind in BODY_CLASSES.items() if isinstance(body, kind))
    return uint16(MLS10) + uint16(wire_format) + body.encode()


@convert_errors
def decode_message(data: bytes) -> Body:
    """Decode an MLSMessage (section 6)."""
    reader = ByteReader(data)
    if reader.uint16() != MLS10:
        raise MalformedMessageError("a message has an unsupported version of the protocol")
    body = BODY_CLASSES[reader.enum(WireFormat, reader.uint16())].decode(reader)
    reader.finish()
    return body
