"""Credentials and extensions (RFC 9420 sections 5.3, 11.1 and 13.4)."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Self, TypeAlias

from conclave.client.mls.codec import ByteReader, opaque, uint16, vector
from conclave.client.mls.errors import InvalidError, LimitError, MalformedMessageError
from conclave.client.mls.structs import FieldEncoding, Opaque, Struct, Uint16, Uint16s

MAX_EXTENSIONS = 64
MAX_EXTENSION_BYTES = 16_384
"""Maximum size of a list of extensions, except in a group info, which contains the tree."""
MAX_CERTIFICATES = 16
MAX_EXTERNAL_SENDERS = 256


class CredentialType(IntEnum):
    """Types of credentials (section 17.5)."""

    BASIC = 1
    X509 = 2


class ExtensionType(IntEnum):
    """Extensions that this package supports (section 17.3), including that of last-resort key packages."""

    APPLICATION_ID = 1
    RATCHET_TREE = 2
    REQUIRED_CAPABILITIES = 3
    EXTERNAL_PUB = 4
    EXTERNAL_SENDERS = 5
    LAST_RESORT = 0x000A


DEFAULT_EXTENSIONS = frozenset(range(1, 6))
"""Extensions that every client supports: capabilities do not list them (section 7.2)."""
LEAF, KEY_PACKAGE, GROUP_CONTEXT, GROUP_INFO = "a leaf", "a key package", "a group context", "a group info"
PLACES: dict[int, str] = {
    ExtensionType.APPLICATION_ID: LEAF,
    ExtensionType.RATCHET_TREE: GROUP_INFO,
    ExtensionType.REQUIRED_CAPABILITIES: GROUP_CONTEXT,
    ExtensionType.EXTERNAL_PUB: GROUP_INFO,
    ExtensionType.EXTERNAL_SENDERS: GROUP_CONTEXT,
    ExtensionType.LAST_RESORT: KEY_PACKAGE,
}
"""Where an extension may occur (section 17.3). Other types may occur anywhere."""
DEFAULT_PROPOSALS = frozenset(range(1, 8))
"""Proposals that every client supports (section 7.2)."""


@dataclass(frozen=True)
class Certificate(Struct):
    """An X.509 certificate, which this package does not interpret."""

    cert_data: Opaque


@dataclass(frozen=True)
class Credential:
    """A member's claimed identity (section 5.3): ``identity`` of a basic credential, or certificates."""

    credential_type: CredentialType
    identity: bytes = b""
    certificates: tuple[Certificate, ...] = ()

    def encode(self) -> bytes:
        """Encode."""
        basic = self.credential_type == CredentialType.BASIC
        return uint16(self.credential_type) + (opaque(self.identity) if basic else vector(self.certificates))

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        kind = reader.enum(CredentialType, reader.uint16())
        if kind == CredentialType.BASIC:
            return cls(kind, reader.opaque())
        return cls(kind, certificates=reader.vector(Certificate.decode, MAX_CERTIFICATES))


def basic(identity: bytes) -> Credential:
    """Return a basic credential."""
    return Credential(CredentialType.BASIC, identity)


@dataclass(frozen=True)
class Extension(Struct):
    """An extension (section 7.2)."""

    extension_type: Uint16
    extension_data: Opaque


def read_extensions(reader: ByteReader) -> tuple[Extension, ...]:
    """Read ``Extension extensions<V>`` of up to MAX_EXTENSION_BYTES."""
    extensions = read_large_extensions(reader)
    if sum(len(extension.extension_data) for extension in extensions) > MAX_EXTENSION_BYTES:
        raise LimitError(f"a list of extensions has more than {MAX_EXTENSION_BYTES} bytes")
    return extensions


def read_large_extensions(reader: ByteReader) -> tuple[Extension, ...]:
    """Read ``Extension extensions<V>``. Raises MalformedMessageError for two extensions of one type (section 13.4)."""
    extensions = reader.vector(Extension.decode, MAX_EXTENSIONS)
    if len({extension.extension_type for extension in extensions}) != len(extensions):
        raise MalformedMessageError("a list has two extensions of one type")
    return extensions


Extensions: TypeAlias = Annotated[tuple[Extension, ...], FieldEncoding(vector, read_extensions)]


LargeExtensions: TypeAlias = Annotated[tuple[Extension, ...], FieldEncoding(vector, read_large_extensions)]


def check_places(extensions: Iterable[Extension], place: str) -> None:
    """Check that extensions may occur at ``place``, a value of PLACES."""
    if any(PLACES.get(extension.extension_type, place) != place for extension in extensions):
        raise InvalidError(f"{place} has an extension that belongs elsewhere")


def find_extension(extensions: Iterable[Extension], extension_type: int) -> bytes | None:
    """Return the data of the extension of a type; None if there is none."""
    return next((e.extension_data for e in extensions if e.extension_type == extension_type), None)


@dataclass(frozen=True)
class RequiredCapabilities(Struct):
    """Capabilities that every member of a group must have (section 11.1)."""

    extension_types: Uint16s
    proposal_types: Uint16s
    credential_types: Uint16s


@dataclass(frozen=True)
class ExternalSender(Struct):
    """A sender outside the group who may propose changes (section 12.1.8.1)."""

    signature_key: Opaque
    credential: Credential


def read_external_senders(reader: ByteReader) -> tuple[ExternalSender, ...]:
    """Read the contents of the extension ``external_senders``."""
    return reader.vector(ExternalSender.decode, MAX_EXTERNAL_SENDERS)
