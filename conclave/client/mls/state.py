"""What a member knows of a group: a value for each state. What changes a state returns another one."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from conclave.client.mls.credentials import Credential
from conclave.client.mls.errors import StaleError, WrongRecipientError
from conclave.client.mls.framing import AuthenticatedContent, Sender
from conclave.client.mls.key_schedule import EpochSchedule, EpochSecrets, GroupContext
from conclave.client.mls.nodes import LeafNode
from conclave.client.mls.proposals import AnyProposal
from conclave.client.mls.secret_tree import SecretTree
from conclave.client.mls.structs import Flag, Opaque, Struct, Uint32
from conclave.client.mls.suites import CipherSuite
from conclave.client.mls.tree import RatchetTree

MAX_PAST = 3
"""Past epochs whose late messages can be read."""
MAX_CACHED = 1_024
"""Proposals that wait for a commit."""
MAX_CACHED_OF_ONE = 64
"""Proposals of one sender that wait for a commit; all new members together count as one."""
MAX_CACHED_BYTES = 262_144
"""Bytes of the proposals of one sender that wait for a commit, as they are stored."""
MAX_PENDING = 32
"""Own commits that wait for the server to tell which commit counts."""


@dataclass(frozen=True)
class PublicGroupState:
    """What all members know of an epoch, and others may."""

    context: GroupContext
    tree: RatchetTree
    interim_transcript_hash: bytes
    confirmation_tag: bytes

    @property
    def suite(self) -> CipherSuite:
        """The cipher suite."""
        return self.tree.suite


@dataclass(frozen=True)
class MlsMember(Struct):
    """A member, as the leaf at ``leaf_index`` says; whether it is true is the application's to judge."""

    leaf_index: Uint32
    credential: Credential
    signature_key: Opaque


def member_at(leaf_index: int, leaf: LeafNode) -> MlsMember:
    """Return the member of a leaf."""
    return MlsMember(leaf_index, leaf.credential, leaf.signature_key)


def members_of(tree: RatchetTree) -> dict[int, MlsMember]:
    """Return all members of a tree, by leaf index."""
    return {leaf_index: member_at(leaf_index, leaf) for leaf_index, leaf in tree.leaves()}


@dataclass(frozen=True)
class CachedProposal(Struct):
    """A proposal that was sent in this epoch.

    ``reference``: by which a commit names it. ``sound``: an own commit could take it along, as far as it goes alone.
    """

    reference: Opaque
    sender: Sender
    proposal: AnyProposal
    is_committable: Flag


@dataclass(frozen=True, repr=False)
class PendingCommit:
    """An own commit that was made, but does not count before the server says so.

    ``message``: as it was sent. ``leaf_private``, ``path_secret``: what the new keys come from.
    """

    message: bytes
    authenticated: AuthenticatedContent
    leaf_private: bytes
    path_secret: bytes


@dataclass(frozen=True, repr=False)
class PastEpoch:
    """What is kept of a past epoch, to read messages that come late."""

    context: GroupContext
    own_index: int
    sender_data_secret: bytes
    resumption_psk: bytes
    secret_tree: SecretTree
    senders: Mapping[int, MlsMember]


@dataclass(frozen=True, repr=False)
class GroupState:
    """The state of a member.

    ``private_keys``: by node, the own leaf's too. ``updates``: private keys of own Update proposals, by public key.
    ``pending``: own commits for this epoch. ``past``: the newest first. ``entered_by``: the hash of the external commit
    by which this member came in, in its first epoch. ``ended``: a ReInit was committed, nothing more may be sent.
    """

    public: PublicGroupState
    own_index: int
    signature_private: bytes
    private_keys: Mapping[int, bytes]
    secrets: EpochSecrets
    secret_tree: SecretTree
    proposals: tuple[CachedProposal, ...] = ()
    updates: Mapping[bytes, bytes] = field(default_factory=dict)
    pending: tuple[PendingCommit, ...] = ()
    past: tuple[PastEpoch, ...] = ()
    entered_by: bytes = b""
    ended: bool = False

    @property
    def suite(self) -> CipherSuite:
        """The cipher suite."""
        return self.public.suite

    @property
    def context(self) -> GroupContext:
        """The group context."""
        return self.public.context

    @property
    def tree(self) -> RatchetTree:
        """The ratchet tree."""
        return self.public.tree

    def members(self) -> dict[int, MlsMember]:
        """Return all members, by leaf index."""
        return members_of(self.tree)

    def as_past(self) -> PastEpoch:
        """Return what is kept of this epoch when another has begun."""
        return PastEpoch(
            context=self.context,
            own_index=self.own_index,
            sender_data_secret=self.secrets.sender_data_secret,
            resumption_psk=self.secrets.resumption_psk,
            secret_tree=self.secret_tree,
            senders=self.members(),
        )

    def past_epoch(self, epoch: int) -> PastEpoch:
        """Return a past epoch; StaleError if its keys are not there."""
        found = next((past for past in self.past if past.context.epoch == epoch), None)
        if found is None:
            raise StaleError(f"a message is of epoch {epoch}, whose keys are not there; the group is in another")
        return found

    def with_past(self, past: PastEpoch) -> "GroupState":
        """Return the state with a past epoch in which a key was used."""
        same = past.context.epoch
        return replace(self, past=tuple(past if one.context.epoch == same else one for one in self.past))

    def check_group(self, group_id: bytes) -> None:
        """Say that a message must be of this group."""
        if group_id != self.context.group_id:
            raise WrongRecipientError("a message is of another group")


def message_hash(message: bytes) -> bytes:
    """Return by what an own message is known when it comes back."""
    return hashlib.sha256(message).digest()


def new_epoch_state(
    public: PublicGroupState,
    own_index: int,
    signature_private: bytes,
    keys: Mapping[int, bytes],
    schedule: EpochSchedule,
) -> GroupState:
    """Return the state of a member at the beginning of an epoch, without a past."""
    tree = SecretTree.create(public.suite, public.tree.size, schedule.encryption_secret)
    return GroupState(public, own_index, signature_private, keys, schedule.secrets, tree)
