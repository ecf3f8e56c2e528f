"""Proposals and commits (RFC 9420 sections 12.1 and 12.4)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar, Self, TypeAlias

from conclave.client.mls.codec import ByteReader, opaque, uint8, uint16
from conclave.client.mls.credentials import Extensions
from conclave.client.mls.errors import MalformedMessageError
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.key_schedule import PreSharedKeyID
from conclave.client.mls.nodes import LeafNode
from conclave.client.mls.structs import FieldEncoding, Opaque, Short, Struct, Uint16, Uint32, optional_of, vector_of
from conclave.client.mls.treekem import UpdatePath

MAX_PROPOSALS = 4_096
"""Maximum number of proposals in a commit."""


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
class Add(Struct):
    """Add the client of a key package."""

    key_package: KeyPackage
    proposal_type: ClassVar = ProposalType.ADD


@dataclass(frozen=True)
class Update(Struct):
    """Replace the sender's leaf."""

    leaf_node: LeafNode
    proposal_type: ClassVar = ProposalType.UPDATE


@dataclass(frozen=True)
class Remove(Struct):
    """Remove the member with that leaf index."""

    removed: Uint32
    proposal_type: ClassVar = ProposalType.REMOVE


@dataclass(frozen=True)
class PreSharedKey(Struct):
    """Include a pre-shared key in the next epoch."""

    psk: PreSharedKeyID
    proposal_type: ClassVar = ProposalType.PSK


@dataclass(frozen=True)
class ReInit(Struct):
    """End the group, and replace it with another."""

    group_id: Short
    version: Uint16
    cipher_suite: Uint16
    extensions: Extensions
    proposal_type: ClassVar = ProposalType.REINIT


@dataclass(frozen=True)
class ExternalInit(Struct):
    """Start the next epoch with a new member's secret."""

    kem_output: Opaque
    proposal_type: ClassVar = ProposalType.EXTERNAL_INIT


@dataclass(frozen=True)
class GroupContextExtensions(Struct):
    """Replace the extensions of the group."""

    extensions: Extensions
    proposal_type: ClassVar = ProposalType.GROUP_CONTEXT_EXTENSIONS


Proposal: TypeAlias = Add | Update | Remove | PreSharedKey | ReInit | ExternalInit | GroupContextExtensions

PROPOSAL_CLASSES: dict[int, type[Proposal]] = {
    int(kind.proposal_type): kind
    for kind in (Add, Update, Remove, PreSharedKey, ReInit, ExternalInit, GroupContextExtensions)
}
PATH_REQUIRED = (Update, Remove, ExternalInit, GroupContextExtensions)
"""Proposals whose commit must have a path (section 12.4)."""
FROM_EXTERNAL = (Add, Remove, PreSharedKey, ReInit, GroupContextExtensions)
"""Proposals that a sender outside the group may send (section 12.1.8)."""


def encode_proposal(proposal: Proposal) -> bytes:
    """Encode a proposal with its type."""
    return uint16(proposal.proposal_type) + proposal.encode()


def decode_proposal(reader: ByteReader) -> Proposal:
    """Decode a proposal with its type."""
    number = reader.uint16()
    kind = PROPOSAL_CLASSES.get(number)
    if kind is None:
        raise MalformedMessageError(f"proposals of type {number} are not supported")
    return kind.decode(reader)


AnyProposal: TypeAlias = Annotated[Proposal, FieldEncoding(encode_proposal, decode_proposal)]
"""A field with a proposal and its type."""


class ProposalOrRefType(IntEnum):
    """How a commit refers to a proposal."""

    PROPOSAL = 1
    REFERENCE = 2


@dataclass(frozen=True)
class ProposalOrRef:
    """A proposal in a commit, by value or by reference."""

    value: Proposal | bytes

    def encode(self) -> bytes:
        """Encode."""
        if isinstance(self.value, bytes):
            return uint8(ProposalOrRefType.REFERENCE) + opaque(self.value)
        return uint8(ProposalOrRefType.PROPOSAL) + encode_proposal(self.value)

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        kind = reader.enum(ProposalOrRefType, reader.uint8())
        return cls(reader.opaque() if kind == ProposalOrRefType.REFERENCE else decode_proposal(reader))


@dataclass(frozen=True)
class Commit(Struct):
    """A commit: proposals, and the committer's new keys."""

    proposals: Annotated[tuple[ProposalOrRef, ...], vector_of(ProposalOrRef, MAX_PROPOSALS)]
    path: Annotated[UpdatePath | None, optional_of(UpdatePath)]
