"""Group infos and Welcomes, for new members (RFC 9420 section 12.4.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from conclave.client.mls.codec import ByteReader, decode
from conclave.client.mls.credentials import GROUP_INFO, ExtensionType, LargeExtensions, check_places, find_extension
from conclave.client.mls.crypto import (
    HPKECiphertext,
    decrypt_with_label,
    encrypt_with_label,
    expand_with_label,
    sign_with_label,
    verify_with_label,
)
from conclave.client.mls.errors import InvalidError, convert_errors
from conclave.client.mls.key_packages import KeyPackage, OwnKeyPackage
from conclave.client.mls.key_schedule import GroupContext, PreSharedKeyID
from conclave.client.mls.nodes import MAX_LEAVES
from conclave.client.mls.structs import Opaque, Struct, Uint16, Uint32, optional_of, vector_of
from conclave.client.mls.suites import CipherSuite
from conclave.client.mls.tree import RatchetTree

MAX_PSKS = 64


@dataclass(frozen=True)
class GroupInfo(Struct):
    """The state of a group, signed by a member."""

    group_context: GroupContext
    extensions: LargeExtensions
    confirmation_tag: Opaque
    signer: Uint32
    signature: Opaque = b""

    def to_be_signed(self) -> bytes:
        """GroupInfoTBS."""
        return self.encode_first(-1)

    def signed(self, suite: CipherSuite, private: bytes) -> "GroupInfo":
        """Return the group info with its signature."""
        return replace(self, signature=sign_with_label(suite, private, "GroupInfoTBS", self.to_be_signed()))

    def check_signature(self, tree: RatchetTree) -> None:
        """Check the signature, and the places of extensions."""
        check_places(self.extensions, GROUP_INFO)
        signer = tree.leaf(self.signer)
        if signer is None:
            raise InvalidError("the signer of a group info is not a member")
        tbs = self.to_be_signed()
        if not verify_with_label(tree.suite, signer.signature_key, "GroupInfoTBS", tbs, self.signature):
            raise InvalidError("the signature of a group info is wrong")

    @convert_errors
    def tree(self, external_tree: bytes | None) -> RatchetTree:
        """Return the tree from ``external_tree``; None: from the extension. Its hash must match."""
        data = find_extension(self.extensions, ExtensionType.RATCHET_TREE) if external_tree is None else external_tree
        if data is None:
            raise InvalidError("a group info has no tree")
        suite = self.group_context.suite
        tree = decode(data, lambda reader: RatchetTree.decode(suite, reader))
        if tree.tree_hash() != self.group_context.tree_hash:
            raise InvalidError("the hash of a tree differs from that in its group info")
        return tree

    @property
    def external_pub(self) -> bytes | None:
        """The key for external commits; None if they are not allowed."""
        data = find_extension(self.extensions, ExtensionType.EXTERNAL_PUB)
        return None if data is None else decode(data, ByteReader.opaque)


@dataclass(frozen=True, repr=False)
class PathSecret(Struct):
    """The path secret of the lowest common ancestor of the committer and the new member."""

    path_secret: Opaque


@dataclass(frozen=True, repr=False)
class GroupSecrets(Struct):
    """The secrets of a new member."""

    joiner_secret: Opaque
    path_secret: Annotated[PathSecret | None, optional_of(PathSecret)]
    psks: Annotated[tuple[PreSharedKeyID, ...], vector_of(PreSharedKeyID, MAX_PSKS)]


@dataclass(frozen=True)
class EncryptedGroupSecrets(Struct):
    """Group secrets, encrypted to the init key of one key package."""

    new_member: Opaque
    encrypted_group_secrets: HPKECiphertext


@dataclass(frozen=True)
class Welcome(Struct):
    """The message to all members added by a commit."""

    cipher_suite: Uint16
    secrets: Annotated[tuple[EncryptedGroupSecrets, ...], vector_of(EncryptedGroupSecrets, MAX_LEAVES)]
    encrypted_group_info: Opaque

    def group_secrets(self, own: OwnKeyPackage) -> GroupSecrets | None:
        """Decrypt the group secrets for a key package; None if the Welcome has none for it."""
        ref = own.key_package.ref()
        found = next((entry for entry in self.secrets if entry.new_member == ref), None)
        if found is None:
            return None
        encrypted = found.encrypted_group_secrets
        data = decrypt_with_label(own.suite, own.init_pair, "Welcome", self.encrypted_group_info, encrypted)
        return decode(data, GroupSecrets.decode)

    def group_info(self, suite: CipherSuite, welcome_secret: bytes) -> GroupInfo:
        """Decrypt the group info."""
        data = suite.aead.open(*_welcome_key(suite, welcome_secret), b"", self.encrypted_group_info)
        return decode(data, GroupInfo.decode)


def _welcome_key(suite: CipherSuite, welcome_secret: bytes) -> tuple[bytes, bytes]:
    key = expand_with_label(suite, welcome_secret, "key", b"", suite.aead.key)
    return key, expand_with_label(suite, welcome_secret, "nonce", b"", suite.aead.nonce)


def create_welcome(
    group_info: GroupInfo,
    welcome_secret: bytes,
    joiner_secret: bytes,
    psks: Sequence[PreSharedKeyID],
    new_members: Mapping[KeyPackage, bytes | None],
) -> Welcome:
    """Create a Welcome. ``new_members``: the path secrets by key package; None without a path."""
    suite = group_info.group_context.suite
    encrypted = suite.aead.seal(*_welcome_key(suite, welcome_secret), b"", group_info.encode())
    secrets = []
    for key_package, path_secret in new_members.items():
        path = None if path_secret is None else PathSecret(path_secret)
        plaintext = GroupSecrets(joiner_secret, path, tuple(psks)).encode()
        ciphertext = encrypt_with_label(suite, key_package.init_key, "Welcome", encrypted, plaintext)
        secrets.append(EncryptedGroupSecrets(key_package.ref(), ciphertext))
    return Welcome(suite.number, tuple(secrets), encrypted)
