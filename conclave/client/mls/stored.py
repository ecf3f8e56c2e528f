"""The stored format of a group's state: versioned, in the protocol's encoding, with limits like those of messages.

It contains private keys, but no used ones. The application must erase the former state when it stores a new one.
"""

from conclave.client.mls.codec import ByteReader, decode, opaque, state_reader, uint8, uint32, vector
from conclave.client.mls.errors import MalformedMessageError
from conclave.client.mls.framing import AuthenticatedContent
from conclave.client.mls.key_schedule import EpochSecrets, GroupContext
from conclave.client.mls.nodes import MAX_LEAVES
from conclave.client.mls.secret_tree import SecretTree
from conclave.client.mls.state import (
    MAX_CACHED,
    MAX_PAST,
    MAX_PENDING,
    CachedProposal,
    GroupState,
    MlsMember,
    PastEpoch,
    PendingCommit,
    PublicGroupState,
)
from conclave.client.mls.tree import RatchetTree

VERSION = 1
MAX_NODES = 2 * MAX_LEAVES


def encode_state(state: GroupState) -> bytes:
    """Return the stored format of a state."""
    keys = b"".join(uint32(x) + opaque(private) for x, private in state.private_keys.items())
    updates = b"".join(opaque(public) + opaque(private) for public, private in state.updates.items())
    parts = (
        uint8(VERSION),
        _encode_public(state.public),
        uint32(state.own_index),
        opaque(state.signature_private),
        opaque(keys),
        state.secrets.encode(),
        state.secret_tree.encode(),
        vector(state.proposals),
        opaque(updates),
        opaque(b"".join(map(_encode_pending, state.pending))),
        opaque(b"".join(map(_encode_past, state.past))),
        opaque(state.entered_by),
        uint8(state.ended),
    )
    return b"".join(parts)


def decode_state(data: bytes) -> GroupState:
    """Return the state from its stored format."""
    return decode(data, _decode_state, state_reader)


def _decode_state(reader: ByteReader) -> GroupState:
    if reader.uint8() != VERSION:
        raise MalformedMessageError("a group was stored by another version of this package")
    public = _decode_public(reader)
    suite = public.suite
    state = GroupState(
        public=public,
        own_index=reader.uint32(),
        signature_private=reader.opaque(),
        private_keys=dict(reader.vector(lambda inner: (inner.uint32(), inner.opaque()), MAX_NODES)),
        secrets=EpochSecrets.decode(reader),
        secret_tree=SecretTree.decode(suite, reader),
        proposals=reader.vector(CachedProposal.decode, MAX_CACHED),
        updates=dict(reader.vector(lambda inner: (inner.opaque(), inner.opaque()), MAX_CACHED)),
        pending=reader.vector(_decode_pending, MAX_PENDING),
        past=reader.vector(_decode_past, MAX_PAST),
        entered_by=reader.opaque(),
        ended=bool(reader.uint8()),
    )
    state.tree.member(state.own_index)
    if any(x >= len(state.tree.nodes) for x in state.private_keys):
        raise MalformedMessageError("a stored group has keys of nodes outside its tree")
    return state


def _encode_public(public: PublicGroupState) -> bytes:
    hashes = opaque(public.interim_transcript_hash) + opaque(public.confirmation_tag)
    return public.context.encode() + public.tree.encode() + hashes


def _decode_public(reader: ByteReader) -> PublicGroupState:
    context = GroupContext.decode(reader)
    return PublicGroupState(context, RatchetTree.decode(context.suite, reader), reader.opaque(), reader.opaque())


def _encode_pending(pending: PendingCommit) -> bytes:
    keys = opaque(pending.leaf_private) + opaque(pending.path_secret)
    return opaque(pending.message) + opaque(pending.authenticated.encode()) + keys


def _decode_pending(reader: ByteReader) -> PendingCommit:
    message, authenticated = reader.opaque(), decode(reader.opaque(), AuthenticatedContent.decode)
    return PendingCommit(message, authenticated, reader.opaque(), reader.opaque())


def _encode_past(past: PastEpoch) -> bytes:
    keys = opaque(past.sender_data_secret) + opaque(past.resumption_psk) + past.secret_tree.encode()
    senders = vector(past.senders.values())
    return past.context.encode() + uint32(past.own_index) + keys + senders


def _decode_past(reader: ByteReader) -> PastEpoch:
    context = GroupContext.decode(reader)
    keys = reader.uint32(), reader.opaque(), reader.opaque(), SecretTree.decode(context.suite, reader)
    senders = reader.vector(MlsMember.decode, MAX_LEAVES)
    return PastEpoch(context, *keys, {member.leaf_index: member for member in senders})
