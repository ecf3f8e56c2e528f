"""The interface of a group for applications.

Each call changes the group completely, or raises an MlsError and leaves it unchanged. Nothing is written to disk: store
``to_bytes`` before you send the result of a call.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from conclave.client.mls import joining
from conclave.client.mls.commits import CommitInputs, CommitSpec, OwnPath, create_commit, group_info
from conclave.client.mls.credentials import Extension
from conclave.client.mls.crypto import fingerprint, random_secret
from conclave.client.mls.errors import LimitError, MalformedMessageError, MlsError, StateError, convert_errors
from conclave.client.mls.framing import (
    PrivateMessage,
    PublicMessage,
    WireFormat,
    decode_message,
    encode_message,
)
from conclave.client.mls.hpke import generate_key_pair
from conclave.client.mls.key_packages import KeyPackage, OwnKeyPackage
from conclave.client.mls.key_schedule import PreSharedKeyID, PSKType, export_secret
from conclave.client.mls.nodes import LeafNodeSource
from conclave.client.mls.proposal_cache import cache_proposal, committable_proposals, must_commit
from conclave.client.mls.proposal_lists import leaf_rules
from conclave.client.mls.proposals import Add, GroupContextExtensions, PreSharedKey, Proposal, Remove, Update
from conclave.client.mls.receiving import (
    CommitApplied,
    Received,
    receive_private,
    receive_public,
    take_commit,
)
from conclave.client.mls.sending import protected, signed
from conclave.client.mls.state import MAX_PENDING, GroupState, MlsMember, PendingCommit, message_hash
from conclave.client.mls.stored import decode_state, encode_state
from conclave.client.mls.suites import CipherSuite
from conclave.client.mls.validation import Policy, check_usable_now
from conclave.client.mls.welcome import GroupInfo, Welcome

NO_PSKS: Mapping[bytes, bytes] = {}


@dataclass(frozen=True)
class OwnCommit:
    """An own commit to send. It takes effect when it comes back as the first of its epoch.

    ``welcome``: for added members. ``group_info``, ``epoch``, ``epoch_authenticator``: values after the commit.
    """

    message: bytes
    welcome: bytes | None
    group_info: bytes
    epoch: int
    epoch_authenticator: bytes


class MlsGroup:
    """A member's view of a group. ``policy``: the application's rules; it is not stored."""

    def __init__(self, state: GroupState, policy: Policy) -> None:
        self._current: GroupState | None = state
        self.policy = policy
        self.welcomed_by: MlsMember | None = None
        """The signer of the Welcome by which this object has joined; not stored."""

    # Joining

    @classmethod
    def create(
        cls,
        own: OwnKeyPackage,
        now: int,
        *,
        group_id: bytes | None = None,
        extensions: Sequence[Extension] = (),
        policy: Policy | None = None,
    ) -> Self:
        """Create a group with the client of ``own`` as its only member. ``group_id``: None: random."""
        new_group_id = os.urandom(own.suite.kdf.size) if group_id is None else group_id
        policy = policy or Policy()
        return cls(joining.create(own, new_group_id, tuple(extensions), policy, now), policy)

    @classmethod
    @convert_errors
    def join(
        cls,
        welcome: bytes,
        own_key_packages: Sequence[OwnKeyPackage],
        now: int,
        *,
        known_groups: Collection[bytes] = (),
        tree: bytes | None = None,
        psks: Mapping[bytes, bytes] = NO_PSKS,
        policy: Policy | None = None,
    ) -> tuple[Self, OwnKeyPackage]:
        """Join with a Welcome: return the group, and the used key package.

        Erase the key package's private keys in the transaction that stores the state, unless it is a last-resort one.
        """
        body = decode_message(welcome)
        if not isinstance(body, Welcome):
            raise MalformedMessageError("a message is not a Welcome")
        policy = policy or Policy()
        inputs = CommitInputs(policy, now, psks)
        state, key_package, signer = joining.join(body, own_key_packages, inputs, known_groups, tree)
        group = cls(state, policy)
        group.welcomed_by = signer
        return group, key_package

    @classmethod
    @convert_errors
    def join_external(
        cls,
        info: bytes,
        own: OwnKeyPackage,
        now: int,
        *,
        resync: bool = False,
        tree: bytes | None = None,
        authenticated_data: bytes = b"",
        policy: Policy | None = None,
    ) -> tuple[Self, bytes]:
        """Join by an external commit: return the group after it, and the commit.

        ``own``: provides the identity and the signature key. ``resync``: remove an old leaf of the same identity. If
        another commit of the epoch comes first, this one is void: drop the group, and join with a newer group info.
        """
        body = decode_message(info)
        if not isinstance(body, GroupInfo):
            raise MalformedMessageError("a message is not a group info")
        policy = policy or Policy()
        result = joining.external_join(
            body,
            own,
            CommitInputs(policy, now, NO_PSKS),
            resync=resync,
            tree=tree,
            authenticated_data=authenticated_data,
        )
        return cls(result.state, policy), result.message

    def copy(self) -> Self:
        """Return an independent copy of the group."""
        return type(self)(self._state, self.policy)

    # Properties

    @property
    def _state(self) -> GroupState:
        if self._current is None:
            raise StateError("this client is no member of the group any more")
        return self._current

    @property
    def is_member(self) -> bool:
        """Whether this client is a member. Its removal erases the group's keys."""
        return self._current is not None

    @property
    def suite(self) -> CipherSuite:
        """The cipher suite."""
        return self._state.suite

    @property
    def group_id(self) -> bytes:
        """The id of the group."""
        return self._state.context.group_id

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self._state.context.epoch

    @property
    def epoch_authenticator(self) -> bytes:
        """A value that only members of the epoch have (section 8.7)."""
        return self._state.secrets.epoch_authenticator

    @property
    def confirmation_tag(self) -> bytes:
        """The confirmation tag of the commit that began this epoch, which identifies the commit."""
        return self._state.public.confirmation_tag

    @property
    def has_proposals(self) -> bool:
        """Whether proposals are pending, so that a commit is needed before the next message (section 12.4)."""
        return must_commit(self._state, self.policy)

    @property
    def tree_hash(self) -> bytes:
        """The hash of the tree."""
        return self._state.context.tree_hash

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The extensions of the group."""
        return self._state.context.extensions

    @property
    def own_index(self) -> int:
        """The leaf index of this client."""
        return self._state.own_index

    @property
    def fingerprint(self) -> str:
        """The fingerprint of this client's own signature key."""
        return fingerprint(self._state.tree.member(self.own_index).signature_key)

    def members(self) -> dict[int, MlsMember]:
        """Return the members, by leaf index."""
        return self._state.members()

    def find(self, identity: bytes) -> MlsMember | None:
        """Return the member with a basic identity."""
        return next((each for each in self.members().values() if each.credential.identity == identity), None)

    @property
    def pending(self) -> tuple[bytes, ...]:
        """Own commits of this epoch that have not come back yet, as sent."""
        return tuple(each.message for each in self._state.pending)

    def export_secret(self, label: str, context: bytes, length: int) -> bytes:
        """Return a secret that only members of this epoch have (section 8.5)."""
        return export_secret(self.suite, self._state.secrets, label, context, length)

    def group_info(self) -> bytes:
        """Return a signed group info, for external commits."""
        return encode_message(group_info(self._state, external_pub=True))

    def ratchet_tree(self) -> bytes:
        """Return the encoded ratchet tree."""
        return self._state.tree.encode()

    # Changing the group

    @convert_errors
    def commit(
        self,
        now: int,
        *,
        add: Sequence[KeyPackage] = (),
        remove: Sequence[int] = (),
        extensions: Sequence[Extension] | None = None,
        psks: Mapping[bytes, bytes] = NO_PSKS,
        authenticated_data: bytes = b"",
        private: bool = False,
    ) -> OwnCommit:
        """Create a commit with new own keys and the cached proposals. It is pending until it comes back.

        ``remove``: leaf indexes. ``extensions``: the group's new list. ``psks``: pre-shared keys of the application to
        include, by id. ``private``: encrypt the commit.
        """
        state, inputs = self._state, CommitInputs(self.policy, now, psks)
        self._check_may_change(state)
        for key_package in add:
            check_usable_now(key_package, leaf_rules(state.public, self.policy, now))
        proposals: list[Proposal] = [Remove(leaf_index) for leaf_index in remove]
        proposals += [Add(key_package) for key_package in add]
        proposals += [] if extensions is None else [GroupContextExtensions(tuple(extensions))]
        proposals += [PreSharedKey(PreSharedKeyID(PSKType.EXTERNAL, random_secret(self.suite), each)) for each in psks]
        wire_format = WireFormat.PRIVATE_MESSAGE if private else WireFormat.PUBLIC_MESSAGE
        spec = CommitSpec(
            tuple(proposals), committable_proposals(state, proposals, self.policy), authenticated_data, wire_format
        )
        try:
            created = create_commit(state, spec, inputs)
        except MlsError:
            if not spec.references:
                raise
            created = create_commit(state, replace(spec, references=()), inputs)
        state, message = protected(state, created.authenticated)
        pending = PendingCommit(message, created.authenticated, created.own.leaf_private, created.own.path_secret)
        self._current = replace(state, pending=(*state.pending, pending))
        return OwnCommit(
            message,
            None if created.welcome is None else encode_message(created.welcome),
            encode_message(group_info(created.after, external_pub=True)),
            created.after.context.epoch,
            created.after.secrets.epoch_authenticator,
        )

    def _check_may_change(self, state: GroupState) -> None:
        if state.ended:
            raise StateError("the group has ended, and was replaced by another one")
        if len(state.pending) >= MAX_PENDING:
            raise LimitError(f"{MAX_PENDING} own commits of this epoch are pending")

    def apply_pending(self, now: int, message: bytes | None = None, psks: Mapping[bytes, bytes] = NO_PSKS) -> None:
        """Apply an own commit before it comes back. ``message``: the commit; None: the only pending one."""
        pending = self._state.pending
        matches = [each for each in pending if message is None or each.message == message]
        if len(matches) != 1:
            raise StateError("no such own commit is pending")
        self._apply_own(matches[0], CommitInputs(self.policy, now, psks))

    def drop_pending(self, message: bytes | None = None) -> None:
        """Drop a pending commit that will not be sent. ``message``: the commit; None: all."""
        state = self._state
        remaining = tuple(each for each in state.pending if message is not None and each.message != message)
        self._current = replace(state, pending=remaining)

    def propose_add(self, key_package: KeyPackage, now: int, *, private: bool = False) -> bytes:
        """Propose to add a client; return the message."""
        check_usable_now(key_package, leaf_rules(self._state.public, self.policy, now))
        return self._propose(Add(key_package), now, private=private)

    def propose_remove(self, leaf_index: int, now: int, *, private: bool = False) -> bytes:
        """Propose to remove a member, or the own leaf; return the message."""
        self._state.tree.member(leaf_index)
        return self._propose(Remove(leaf_index), now, private=private)

    def propose_update(self, now: int, *, private: bool = False) -> bytes:
        """Propose a new own leaf with a new key; return the message."""
        state = self._state
        pair = generate_key_pair(state.suite)
        leaf = replace(
            state.tree.member(state.own_index),
            encryption_key=pair.public,
            leaf_node_source=LeafNodeSource.UPDATE,
            lifetime=None,
            parent_hash=None,
        ).signed(state.suite, state.signature_private, state.context.group_id, state.own_index)
        return self._propose(Update(leaf), now, private=private, keys={pair.public: pair.private})

    def _propose(self, proposal: Proposal, now: int, *, private: bool, keys: Mapping[bytes, bytes] = NO_PSKS) -> bytes:
        state = self._state
        self._check_may_change(state)
        wire_format = WireFormat.PRIVATE_MESSAGE if private else WireFormat.PUBLIC_MESSAGE
        authenticated = signed(state, proposal, b"", wire_format)
        state = cache_proposal(state, authenticated, proposal, CommitInputs(self.policy, now, NO_PSKS))
        state, message = protected(state, authenticated)
        self._current = replace(state, updates={**state.updates, **keys})
        return message

    # Messages

    @convert_errors
    def encrypt(self, data: bytes, authenticated_data: bytes = b"") -> bytes:
        """Encrypt application data for this epoch. Raises StateError while proposals are pending (section 12.4)."""
        state = self._state
        if state.ended:
            raise StateError("the group has ended, and was replaced by another one")
        if must_commit(state, self.policy):
            raise StateError("proposals are pending: a commit is needed before the next message")
        authenticated = signed(state, data, authenticated_data, WireFormat.PRIVATE_MESSAGE)
        self._current, message = protected(state, authenticated)
        return message

    @convert_errors
    def receive(self, message: bytes, now: int, psks: Mapping[bytes, bytes] = NO_PSKS) -> Received:
        """Process a message, in the server's order. A rejected message raises an MlsError, and changes nothing.

        An own commit that comes back is applied. If another commit comes first, own commits of the epoch are
        void. Own application messages raise OwnMessageError: the sender has to store their content.
        """
        state, inputs = self._state, CommitInputs(self.policy, now, psks)
        own = next((each for each in state.pending if each.message == message), None)
        if own is not None:
            return self._apply_own(own, inputs)
        if state.entered_by and state.entered_by == message_hash(message):
            return CommitApplied(None, b"", state.context.epoch, own=True)
        body = decode_message(message)
        if isinstance(body, PrivateMessage):
            self._current, received = receive_private(state, body, inputs)
        elif isinstance(body, PublicMessage):
            self._current, received = receive_public(state, body, inputs)
        else:
            raise MalformedMessageError("a message has a type that is not sent to groups")
        return received

    def _apply_own(self, own: PendingCommit, inputs: CommitInputs) -> CommitApplied:
        path = OwnPath(own.leaf_private, own.path_secret)
        self._current, received = take_commit(self._state, own.authenticated, path, inputs)
        return received

    # Storing

    def to_bytes(self) -> bytes:
        """Return the stored format of the state, with private keys."""
        return encode_state(self._state)

    @classmethod
    @convert_errors
    def from_bytes(cls, data: bytes, policy: Policy | None = None) -> Self:
        """Return the group from its stored format."""
        return cls(decode_state(data), policy or Policy())
