"""Key packages (RFC 9420 section 10), which let others add a client while it is offline."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Self

from conclave.client.mls import hpke
from conclave.client.mls.codec import ByteReader, decode, opaque, uint8, uint16
from conclave.client.mls.credentials import Extension, Extensions, ExtensionType, basic
from conclave.client.mls.crypto import make_key_package_ref, sign_with_label, verify_with_label
from conclave.client.mls.errors import MalformedMessageError
from conclave.client.mls.nodes import MLS10, LeafNode, LeafNodeSource, Lifetime, own_capabilities
from conclave.client.mls.structs import FieldEncoding, Opaque, Struct, Uint16
from conclave.client.mls.suites import CipherSuite, KeyPair, suite_of

BACKDATE_SECONDS = 3_600
"""Seconds by which the start of an own leaf's lifetime is backdated, for clients whose clocks are behind."""
LIFETIME_SECONDS = 90 * 86_400
"""Validity of own key packages, in seconds."""
STORED_VERSION = 1
"""Version of the stored format."""


def _read_version(reader: ByteReader) -> int:
    version = reader.uint16()
    if version != MLS10:
        raise MalformedMessageError("a key package has an unsupported version of the protocol")
    return version


@dataclass(frozen=True)
class KeyPackage(Struct):
    """A key package. ``init_key``: the key to which a Welcome is encrypted."""

    version: Annotated[int, FieldEncoding(uint16, _read_version)]
    cipher_suite: Uint16
    init_key: Opaque
    leaf_node: LeafNode
    extensions: Extensions = ()
    signature: Opaque = b""

    def to_be_signed(self) -> bytes:
        """KeyPackageTBS."""
        return self.encode_first(-1)

    @cached_property
    def encoded(self) -> bytes:
        """The encoded key package."""
        return super().encode()

    def encode(self) -> bytes:
        """Encode."""
        return self.encoded

    @property
    def suite(self) -> CipherSuite:
        """The cipher suite. Raises MalformedMessageError if it is not supported."""
        return suite_of(self.cipher_suite)

    @property
    def is_last_resort(self) -> bool:
        """Whether it may be used more than once."""
        return any(e.extension_type == ExtensionType.LAST_RESORT for e in self.extensions)

    def ref(self) -> bytes:
        """KeyPackageRef (section 5.2)."""
        return make_key_package_ref(self.suite, self.encoded)

    def signed(self, private: bytes) -> "KeyPackage":
        """Return the key package with its signature."""
        return replace(self, signature=sign_with_label(self.suite, private, "KeyPackageTBS", self.to_be_signed()))

    def is_signed(self) -> bool:
        """Return whether it has a valid signature of the leaf's key."""
        key = self.leaf_node.signature_key
        return verify_with_label(self.suite, key, "KeyPackageTBS", self.to_be_signed(), self.signature)


@dataclass(frozen=True, repr=False)
class OwnKeyPackage:
    """A key package with its private keys: store them until it is used, then erase them."""

    key_package: KeyPackage
    init_private: bytes
    encryption_private: bytes
    signature_private: bytes

    @property
    def suite(self) -> CipherSuite:
        """The cipher suite."""
        return self.key_package.suite

    @property
    def init_pair(self) -> KeyPair:
        """The key pair for Welcomes."""
        return KeyPair(self.init_private, self.key_package.init_key)

    def to_bytes(self) -> bytes:
        """Return the stored format, with the private keys."""
        keys = opaque(self.init_private) + opaque(self.encryption_private) + opaque(self.signature_private)
        return uint8(STORED_VERSION) + self.key_package.encode() + keys

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the key package from its stored format."""
        return decode(data, cls._decode)

    @classmethod
    def _decode(cls, reader: ByteReader) -> Self:
        if reader.uint8() != STORED_VERSION:
            raise MalformedMessageError("a key package was stored by another version of this package")
        return cls(KeyPackage.decode(reader), reader.opaque(), reader.opaque(), reader.opaque())


def create_key_package(
    suite: CipherSuite, identity: bytes, signature_private: bytes, now: int, *, last_resort: bool = False
) -> OwnKeyPackage:
    """Create a key package with new keys.

    ``now``: Unix seconds. ``last_resort``: it may be used more than once, when no other is left.
    """
    init, encryption = hpke.generate_key_pair(suite), hpke.generate_key_pair(suite)
    leaf = LeafNode(
        encryption_key=encryption.public,
        signature_key=suite.signature.public_of(signature_private),
        credential=basic(identity),
        capabilities=own_capabilities(last_resort=last_resort),
        leaf_node_source=LeafNodeSource.KEY_PACKAGE,
        lifetime=Lifetime(max(0, now - BACKDATE_SECONDS), now + LIFETIME_SECONDS),
    ).signed(suite, signature_private)
    extensions = (Extension(ExtensionType.LAST_RESORT, b""),) if last_resort else ()
    key_package = KeyPackage(MLS10, suite.number, init.public, leaf, extensions).signed(signature_private)
    return OwnKeyPackage(key_package, init.private, encryption.private, signature_private)
