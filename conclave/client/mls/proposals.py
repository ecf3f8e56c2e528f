"""Proposals and commits as they go over the wire (RFC 9420 sections 12.1 and 12.4)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self, TypeAlias

from conclave.client.mls.codec import Reader, opaque, optional, uint8, uint16, uint32, vector
from conclave.client.mls.credentials import Extension, read_extensions
from conclave.client.mls.errors import MalformedError
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.key_schedule import PreSharedKeyID
from conclave.client.mls.nodes import LeafNode
from conclave.client.mls.treekem import UpdatePath

MAX_PROPOSALS = 4_096
"""Proposals in a commit."""


class ProposalType(IntEnum):
    """Types of proposals (section 17.4)."""

    ADD = 1
    UPDATE = 2
    REMOVE = 3
    PSK = 4
    REINIT = 5
    EXTERNAL_INIT = 6
    GROUP_CONTEXT_EXTENSIONS = 7


@dataclass(frozen=True)
class Add:
    """Add the client of a key package."""

    key_package: KeyPackage
    proposal_type: ClassVar = ProposalType.ADD

    def encode(self) -> bytes:
        """Encode."""
        return self.key_package.encode()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(KeyPackage.decode(reader))


@dataclass(frozen=True)
class Update:
    """Replace the sender's leaf."""

    leaf_node: LeafNode
    proposal_type: ClassVar = ProposalType.UPDATE

    def encode(self) -> bytes:
        """Encode."""
        return self.leaf_node.encode()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(LeafNode.decode(reader))


@dataclass(frozen=True)
class Remove:
    """Remove the member with that leaf index."""

    removed: int
    proposal_type: ClassVar = ProposalType.REMOVE

    def encode(self) -> bytes:
        """Encode."""
        return uint32(self.removed)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(reader.uint32())


@dataclass(frozen=True)
class PreSharedKey:
    """Let a pre-shared key flow into the next epoch."""

    psk: PreSharedKeyID
    proposal_type: ClassVar = ProposalType.PSK

    def encode(self) -> bytes:
        """Encode."""
        return self.psk.encode()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(PreSharedKeyID.decode(reader))


@dataclass(frozen=True)
class ReInit:
    """End the group, and begin another in its place."""

    group_id: bytes
    version: int
    cipher_suite: int
    extensions: tuple[Extension, ...]
    proposal_type: ClassVar = ProposalType.REINIT

    def encode(self) -> bytes:
        """Encode."""
        return opaque(self.group_id) + uint16(self.version) + uint16(self.cipher_suite) + vector(self.extensions)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(reader.opaque(), reader.uint16(), reader.uint16(), read_extensions(reader))


@dataclass(frozen=True)
class ExternalInit:
    """Begin the next epoch by a secret that a new member sends."""

    kem_output: bytes
    proposal_type: ClassVar = ProposalType.EXTERNAL_INIT

    def encode(self) -> bytes:
        """Encode."""
        return opaque(self.kem_output)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(reader.opaque())


@dataclass(frozen=True)
class GroupContextExtensions:
    """Replace the extensions of the group."""

    extensions: tuple[Extension, ...]
    proposal_type: ClassVar = ProposalType.GROUP_CONTEXT_EXTENSIONS

    def encode(self) -> bytes:
        """Encode."""
        return vector(self.extensions)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(read_extensions(reader))


Proposal: TypeAlias = Add | Update | Remove | PreSharedKey | ReInit | ExternalInit | GroupContextExtensions

KINDS: dict[int, type[Proposal]] = {
    int(kind.proposal_type): kind
    for kind in (Add, Update, Remove, PreSharedKey, ReInit, ExternalInit, GroupContextExtensions)
}
PATH_REQUIRED = (Update, Remove, ExternalInit, GroupContextExtensions)
"""Proposals whose commit must have a path (section 12.4)."""
FROM_EXTERNAL = (Add, Remove, PreSharedKey, ReInit, GroupContextExtensions)
"""Proposals that a sender outside the group may send (section 12.1.8)."""


def encode_proposal(proposal: Proposal) -> bytes:
    """Encode a proposal that says of which type it is."""
    return uint16(proposal.proposal_type) + proposal.encode()


def decode_proposal(reader: Reader) -> Proposal:
    """Decode a proposal that says of which type it is."""
    number = reader.uint16()
    kind = KINDS.get(number)
    if kind is None:
        raise MalformedError(f"this package has no proposal of type {number}")
    return kind.decode(reader)


class ProposalOrRefType(IntEnum):
    """How a commit names a proposal."""

    PROPOSAL = 1
    REFERENCE = 2


@dataclass(frozen=True)
class ProposalOrRef:
    """A proposal in a commit, or the hash of the message in which it was sent."""

    value: Proposal | bytes

    def encode(self) -> bytes:
        """Encode."""
        if isinstance(self.value, bytes):
            return uint8(ProposalOrRefType.REFERENCE) + opaque(self.value)
        return uint8(ProposalOrRefType.PROPOSAL) + encode_proposal(self.value)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        kind = reader.enum(ProposalOrRefType, reader.uint8())
        return cls(reader.opaque() if kind == ProposalOrRefType.REFERENCE else decode_proposal(reader))


@dataclass(frozen=True)
class Commit:
    """A commit: what changes, and the committer's new keys."""

    proposals: tuple[ProposalOrRef, ...]
    path: UpdatePath | None

    def encode(self) -> bytes:
        """Encode."""
        return vector(self.proposals) + optional(self.path)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        return cls(reader.vector(ProposalOrRef.decode, MAX_PROPOSALS), reader.optional(UpdatePath.decode))
