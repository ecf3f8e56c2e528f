"""Creates commits (RFC 9420 section 12.4.1), and applies those of this member and of others (section 12.4.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conclave.client.mls import hpke, tree_math
from conclave.client.mls.codec import opaque
from conclave.client.mls.credentials import Extension, ExtensionType
from conclave.client.mls.crypto import check_equal, random_secret, zeros
from conclave.client.mls.errors import InvalidError
from conclave.client.mls.framing import (
    AuthenticatedContent,
    FramedContent,
    FramedContentAuthData,
    Sender,
    SenderType,
    WireFormat,
    member,
)
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.key_schedule import EpochSchedule, external_init_secret, external_key_pair
from conclave.client.mls.nodes import LeafNode, LeafNodeSource
from conclave.client.mls.parent_hash import with_path
from conclave.client.mls.proposal_lists import AppliedProposals, CommittedProposal, apply, check_list
from conclave.client.mls.proposals import Add, Commit, Proposal, ProposalOrRef, Remove
from conclave.client.mls.protection import sign
from conclave.client.mls.state import (
    MAX_PAST,
    CachedProposal,
    GroupState,
    MlsMember,
    PublicGroupState,
    members_of,
    new_epoch_state,
)
from conclave.client.mls.transition import (
    StagedCommit,
    committed_proposals,
    finish,
    provisional_context,
    psk_secret,
    stage,
)
from conclave.client.mls.treekem import PathSecrets, UpdatePath, decrypt_path, derive_path, encrypt_path
from conclave.client.mls.validation import Policy
from conclave.client.mls.welcome import GroupInfo, Welcome, create_welcome


@dataclass(frozen=True, repr=False)
class CommitInputs:
    """The application's inputs for creating or applying a commit.

    ``now``: Unix seconds. ``psks``: the application's pre-shared keys, by id.
    """

    policy: Policy
    now: int
    psks: Mapping[bytes, bytes]


@dataclass(frozen=True, repr=False)
class OwnPath:
    """The secrets from which the keys of an own commit are derived."""

    leaf_private: bytes
    path_secret: bytes


@dataclass(frozen=True)
class CommitEffect:
    """The changes of a commit. ``removed_self``: the reader was removed, and there is no new state.

    ``proposed``: members whose addition or removal was proposed by a member other than the committer.
    """

    committer: MlsMember
    added: tuple[MlsMember, ...]
    removed: tuple[MlsMember, ...]
    updated: tuple[MlsMember, ...]
    removed_self: bool = False
    proposed: tuple[MlsMember, ...] = ()


# Applying


def advance(
    state: GroupState, authenticated: AuthenticatedContent, own: OwnPath | None, inputs: CommitInputs
) -> tuple[GroupState | None, CommitEffect, EpochSchedule | None]:
    """Apply a commit whose signature is verified, without checking its confirmation tag.

    ``own``: the secrets of an own commit; None for a received one. Returns no state if the reader was removed.
    """
    content = authenticated.content
    if not isinstance(content.content, Commit):
        raise InvalidError("a message is not a commit")
    committed = committed_proposals(state, content.content, content.sender)
    staged = stage(state.public, content.content, content.sender, committed, inputs.policy, inputs.now)
    effect = _effect(state, staged, committed)
    if effect.removed_self:
        return None, effect, None
    keys = _remaining_keys(state, staged)
    path = _path_secrets(state, staged, own, keys)
    if path is not None:
        keys |= {x: pair.private for x, pair in path.keys.items()}
    if own is not None:
        keys[2 * state.own_index] = own.leaf_private
    public, schedule = finish(
        state.public,
        staged,
        authenticated,
        _init_secret(state, staged),
        zeros(state.suite) if path is None else path.commit_secret,
        psk_secret(state, staged.applied.psks, inputs.psks),
    )
    new = new_epoch_state(public, state.own_index, state.signature_private, keys, schedule)
    past = (state.as_past(), *state.past)[:MAX_PAST]
    return replace(new, past=past, ended=staged.applied.reinit), effect, schedule


def apply_commit(
    state: GroupState, authenticated: AuthenticatedContent, own: OwnPath | None, inputs: CommitInputs
) -> tuple[GroupState | None, CommitEffect]:
    """Apply a commit whose signature is verified, and check its confirmation tag."""
    new, effect, _ = advance(state, authenticated, own, inputs)
    if new is not None:
        tag = authenticated.auth.confirmation_tag or b""
        check_equal(tag, new.public.confirmation_tag, "the confirmation tag of a commit is wrong")
    return new, effect


def _effect(state: GroupState, staged: StagedCommit, committed: Sequence[CommittedProposal]) -> CommitEffect:
    before, after, applied = state.members(), members_of(staged.tree), staged.applied
    by_others = [
        each.sender.sender_type == SenderType.MEMBER and each.sender != member(staged.committer) for each in committed
    ]
    adds = [by_other for each, by_other in zip(committed, by_others, strict=True) if isinstance(each.proposal, Add)]
    proposed = [after[i] for i, by_other in zip(applied.added, adds, strict=True) if by_other]
    for each, by_other in zip(committed, by_others, strict=True):
        if by_other and isinstance(each.proposal, Remove):
            proposed.append(before[each.proposal.removed])
    return CommitEffect(
        committer=after[staged.committer],
        added=tuple(after[i] for i in applied.added),
        removed=tuple(before[i] for i in applied.removed),
        updated=tuple(after[i] for i in applied.updated),
        removed_self=state.own_index in applied.removed,
        proposed=tuple(proposed),
    )


def _remaining_keys(state: GroupState, staged: StagedCommit) -> dict[int, bytes]:
    """Return the private keys whose public keys are still in the tree, and the key of an own Update."""
    own = 2 * state.own_index
    keys = {}
    for x, private in state.private_keys.items():
        before = state.tree.nodes[x]
        after = staged.tree.nodes[x] if x < len(staged.tree.nodes) else None
        if before is not None and after is not None and before.encryption_key == after.encryption_key:
            keys[x] = private
    if state.own_index in staged.applied.updated:
        leaf = staged.tree.member(state.own_index)
        if leaf.encryption_key not in state.updates:
            raise InvalidError("a commit has an update of this member that it never sent")
        keys[own] = state.updates[leaf.encryption_key]
    return keys


def _path_secrets(
    state: GroupState, staged: StagedCommit, own: OwnPath | None, keys: Mapping[int, bytes]
) -> PathSecrets | None:
    if staged.path is None:
        return None
    if own is not None:
        nodes = [x for x, _ in staged.tree.filtered_direct_path(state.own_index)]
        return derive_path(state.suite, nodes, own.path_secret)
    context = staged.context.encode()
    added = staged.applied.added
    return decrypt_path(staged.tree, staged.committer, staged.path, added, state.own_index, keys, context)


def _init_secret(state: GroupState, staged: StagedCommit) -> bytes:
    kem_output = staged.applied.kem_output
    if kem_output is None:
        return state.secrets.init_secret
    return external_init_secret(state.suite, state.secrets, kem_output)


# Creating


@dataclass(frozen=True)
class CommitSpec:
    """The content of a commit. ``proposals``: included by value. ``references``: proposals that were sent before."""

    proposals: tuple[Proposal, ...] = ()
    references: tuple[CachedProposal, ...] = ()
    authenticated_data: bytes = b""
    wire_format: WireFormat = WireFormat.PUBLIC_MESSAGE


@dataclass(frozen=True)
class CreatedCommit:
    """A created commit. ``after``: the state of the group after it. ``welcome``: for added members."""

    authenticated: AuthenticatedContent
    own: OwnPath
    after: GroupState
    welcome: Welcome | None


def create_path(
    public: PublicGroupState, applied: AppliedProposals, committer: int, leaf: LeafNode, private: bytes
) -> tuple[UpdatePath, OwnPath, PathSecrets]:
    """Create new keys for a committer's path, and encrypt them to the group (sections 7.5 and 12.4.1)."""
    suite, group_id = public.suite, public.context.group_id
    tree = applied.tree.with_room(committer)
    own = OwnPath(hpke.generate_key_pair(suite).private, random_secret(suite))
    secrets = derive_path(suite, [x for x, _ in tree.filtered_direct_path(committer)], own.path_secret)
    tree, parent_hash = with_path(tree, committer, secrets.public_keys)
    leaf = replace(
        leaf,
        encryption_key=suite.kem.public_of(own.leaf_private),
        leaf_node_source=LeafNodeSource.COMMIT,
        lifetime=None,
        parent_hash=parent_hash,
    ).signed(suite, private, group_id, committer)
    tree = tree.with_nodes({2 * committer: leaf})
    context = provisional_context(public, applied, tree).encode()
    return UpdatePath(leaf, encrypt_path(tree, committer, secrets, applied.added, context)), own, secrets


def create_commit(state: GroupState, spec: CommitSpec, inputs: CommitInputs) -> CreatedCommit:
    """Create a commit with a path. It is checked by the same functions as received commits."""
    sender = member(state.own_index)
    committed = [CommittedProposal(cached.sender, cached.proposal) for cached in spec.references]
    committed += [CommittedProposal(sender, proposal) for proposal in spec.proposals]
    check_list(committed, sender)
    applied = apply(state.public, committed, inputs.policy, inputs.now)
    leaf = applied.tree.member(state.own_index)
    path, own, secrets = create_path(state.public, applied, state.own_index, leaf, state.signature_private)
    entries = [ProposalOrRef(cached.reference) for cached in spec.references]
    entries += [ProposalOrRef(proposal) for proposal in spec.proposals]
    authenticated = signed_commit(state.public, state.signature_private, Commit(tuple(entries), path), sender, spec)
    after, _, schedule = advance(state, authenticated, own, inputs)
    if after is None or schedule is None:
        raise InvalidError("a committer removes itself")
    welcome = _welcome(after, applied, secrets, schedule) if applied.added else None
    return CreatedCommit(with_tag(authenticated, after.public), own, after, welcome)


def signed_commit(
    public: PublicGroupState, private: bytes, commit: Commit, sender: Sender, spec: CommitSpec
) -> AuthenticatedContent:
    """Sign a commit. It has no confirmation tag yet, since the tag depends on the signature."""
    context = public.context
    content = FramedContent(context.group_id, context.epoch, sender, spec.authenticated_data, commit)
    signature = sign(public.suite, spec.wire_format, content, private, context.encode())
    return AuthenticatedContent(spec.wire_format, content, FramedContentAuthData(signature))


def with_tag(authenticated: AuthenticatedContent, after: PublicGroupState) -> AuthenticatedContent:
    """Return a commit with its confirmation tag."""
    return replace(authenticated, auth=replace(authenticated.auth, confirmation_tag=after.confirmation_tag))


def _welcome(after: GroupState, applied: AppliedProposals, path: PathSecrets, schedule: EpochSchedule) -> Welcome:
    secrets: dict[KeyPackage, bytes | None] = {}
    for leaf_index, key_package in applied.added.items():
        secrets[key_package] = path.secrets[tree_math.common_ancestor(leaf_index, after.own_index)]
    info = group_info(after, external_pub=False)
    return create_welcome(info, schedule.welcome_secret, schedule.joiner_secret, applied.psks, secrets)


def group_info(state: GroupState, *, external_pub: bool) -> GroupInfo:
    """Return a signed group info with the tree (section 12.4.3).

    ``external_pub``: include the key for external commits.
    """
    extensions = [Extension(ExtensionType.RATCHET_TREE, state.tree.encode())]
    if external_pub:
        key = external_key_pair(state.suite, state.secrets).public
        extensions.append(Extension(ExtensionType.EXTERNAL_PUB, opaque(key)))
    public = state.public
    info = GroupInfo(public.context, tuple(extensions), public.confirmation_tag, state.own_index)
    return info.signed(state.suite, state.signature_private)
