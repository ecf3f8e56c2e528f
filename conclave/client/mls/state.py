"""The state of a group, as immutable values. Changes return a new state."""

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
"""Number of past epochs whose late messages can be read."""
MAX_CACHED = 1_024
"""Maximum number of cached proposals."""
MAX_CACHED_OF_ONE = 64
"""Maximum number of cached proposals of one sender; all new members together count as one."""
MAX_CACHED_BYTES = 262_144
"""Maximum stored size of the cached proposals of one sender, in bytes."""
MAX_PENDING = 32
"""Maximum number of own commits of an epoch that have not come back."""


@dataclass(frozen=True)
class PublicGroupState:
    """The public state of an epoch."""

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
    """A member, with the data of its leaf. The application must verify the identity."""

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

    ``reference``: its id in commits. ``is_committable``: a commit with only this proposal would be valid.
    """

    reference: Opaque
    sender: Sender
    proposal: AnyProposal
    is_committable: Flag


@dataclass(frozen=True, repr=False)
class PendingCommit:
    """An own commit that has not come back from the server.

    ``message``: as sent. ``leaf_private``, ``path_secret``: the secrets of the new keys.
    """

    message: bytes
    authenticated: AuthenticatedContent
    leaf_private: bytes
    path_secret: bytes


@dataclass(frozen=True, repr=False)
class PastEpoch:
    """The stored part of a past epoch, to read late messages."""

    context: GroupContext
    own_index: int
    sender_data_secret: bytes
    resumption_psk: bytes
    secret_tree: SecretTree
    senders: Mapping[int, MlsMember]


@dataclass(frozen=True, repr=False)
class GroupState:
    """A member's state of a group.

    ``private_keys``: keys by node, including the own leaf. ``updates``: private keys of own Update proposals, by public
    key. ``pending``: own commits of this epoch. ``past``: past epochs, newest first. ``entered_by``: in the first epoch
    after joining, the hash of the own external commit. ``ended``: a ReInit was committed, and nothing may be sent.
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
        """Return the part of this epoch to store after its end."""
        return PastEpoch(
            context=self.context,
            own_index=self.own_index,
            sender_data_secret=self.secrets.sender_data_secret,
            resumption_psk=self.secrets.resumption_psk,
            secret_tree=self.secret_tree,
            senders=self.members(),
        )

    def past_epoch(self, epoch: int) -> PastEpoch:
        """Return a past epoch. Raises StaleError if its keys are not stored."""
        found = next((past for past in self.past if past.context.epoch == epoch), None)
        if found is None:
            raise StaleError(f"a message is of epoch {epoch}, for which there are no keys")
        return found

    def with_past(self, past: PastEpoch) -> "GroupState":
        """Return the state with an updated past epoch."""
        epoch = past.context.epoch
        return replace(self, past=tuple(past if each.context.epoch == epoch else each for each in self.past))

    def check_group(self, group_id: bytes) -> None:
        """Raise WrongRecipientError for a message of another group."""
        if group_id != self.context.group_id:
            raise WrongRecipientError("a message is of another group")


def message_hash(message: bytes) -> bytes:
    """Return the hash by which an own message is recognized when it comes back."""
    return hashlib.sha256(message).digest()


def new_epoch_state(
    public: PublicGroupState,
    own_index: int,
    signature_private: bytes,
    keys: Mapping[int, bytes],
    schedule: EpochSchedule,
) -> GroupState:
    """Return a member's state at the start of an epoch, without past epochs."""
    tree = SecretTree.create(public.suite, public.tree.size, schedule.encryption_secret)
    return GroupState(public, own_index, signature_private, keys, schedule.secrets, tree)
