"""The transition between epochs (RFC 9420 section 12.4.2): the public checks of a commit, and the key schedule.

``stage`` applies the proposals and the path, ``finish`` the key schedule. In between the caller computes the commit
secret: the committer from its path secret, the other members by decrypting the path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conclave.client.mls.codec import MAX_EPOCH
from conclave.client.mls.errors import InvalidError, LimitError, StateError
from conclave.client.mls.framing import AuthenticatedContent, Sender, SenderType
from conclave.client.mls.key_schedule import (
    EpochSchedule,
    GroupContext,
    PreSharedKeyID,
    PSKType,
    confirmed_transcript_hash,
    derive_epoch,
    derive_joiner_secret,
    derive_psk_secret,
    interim_transcript_hash,
)
from conclave.client.mls.nodes import LeafNodeSource
from conclave.client.mls.parent_hash import with_path
from conclave.client.mls.proposal_lists import AppliedProposals, CommittedProposal, apply, check_list, check_successor
from conclave.client.mls.proposals import PATH_REQUIRED, Commit, Remove
from conclave.client.mls.state import GroupState, PublicGroupState
from conclave.client.mls.tree import RatchetTree
from conclave.client.mls.treekem import UpdatePath, check_path
from conclave.client.mls.validation import Policy, check_leaf, check_members


@dataclass(frozen=True)
class StagedCommit:
    """A commit whose public part was checked. ``tree``: the new tree. ``context``: the provisional group context."""

    committer: int
    path: UpdatePath | None
    applied: AppliedProposals
    tree: RatchetTree
    context: GroupContext


def committed_proposals(state: GroupState, commit: Commit, committer: Sender) -> list[CommittedProposal]:
    """Return the proposals of a commit: referenced proposals from the cache, and the committer's own."""
    cached_proposals = {
        cached.reference: CommittedProposal(cached.sender, cached.proposal) for cached in state.proposals
    }
    proposals = []
    for entry in commit.proposals:
        if not isinstance(entry.value, bytes):
            proposals.append(CommittedProposal(committer, entry.value))
        elif entry.value in cached_proposals:
            proposals.append(cached_proposals[entry.value])
        else:
            raise InvalidError("a commit refers to an unknown proposal")
    return proposals


def committer_of(applied: AppliedProposals, sender: Sender) -> int:
    """Return the leaf index of a committer; a new member gets the leftmost blank leaf."""
    if sender.sender_type == SenderType.NEW_MEMBER_COMMIT:
        return applied.tree.first_blank()
    applied.tree.member(sender.index)
    return sender.index


def stage(
    public: PublicGroupState,
    commit: Commit,
    sender: Sender,
    committed: Sequence[CommittedProposal],
    policy: Policy,
    now: int,
) -> StagedCommit:
    """Check the public part of a commit, and apply it."""
    check_list(committed, sender)
    applied = apply(public, committed, policy, now)
    committer = committer_of(applied, sender)
    if commit.path is None:
        if not committed or any(isinstance(each.proposal, PATH_REQUIRED) for each in committed):
            raise InvalidError("a commit lacks a required path")
        tree = applied.tree
    else:
        _check_committer(public, commit.path, sender, committed)
        tree = _with_update_path(applied, committer, commit.path)
    check_members(tree)
    context = provisional_context(public, applied, tree)
    return StagedCommit(committer, commit.path, applied, tree, context)


def _check_committer(
    public: PublicGroupState, path: UpdatePath, sender: Sender, committed: Sequence[CommittedProposal]
) -> None:
    """Check that the new leaf may replace the committer's old one, if there is one."""
    if sender.sender_type == SenderType.MEMBER:
        check_successor(public.tree.member(sender.index), path.leaf_node)
        return
    for each in committed:
        if isinstance(each.proposal, Remove):
            check_successor(public.tree.member(each.proposal.removed), path.leaf_node)


def _with_update_path(applied: AppliedProposals, committer: int, path: UpdatePath) -> RatchetTree:
    tree = applied.tree.with_room(committer)
    check_leaf(path.leaf_node, LeafNodeSource.COMMIT, committer, applied.rules)
    check_path(tree, committer, path, applied.added)
    filtered = tree.filtered_direct_path(committer)
    keys = {x: node.encryption_key for (x, _), node in zip(filtered, path.nodes, strict=True)}
    tree, parent_hash = with_path(tree, committer, keys)
    if path.leaf_node.parent_hash != parent_hash:
        raise InvalidError("the parent hash of a committer's leaf is wrong")
    return tree.with_nodes({2 * committer: path.leaf_node})


def provisional_context(public: PublicGroupState, applied: AppliedProposals, tree: RatchetTree) -> GroupContext:
    """Return the provisional group context, with the old transcript hash (section 12.4.1)."""
    if public.context.epoch >= MAX_EPOCH:
        raise LimitError("a group has reached its last epoch")
    return replace(
        public.context,
        epoch=public.context.epoch + 1,
        tree_hash=tree.tree_hash(),
        extensions=applied.extensions,
    )


def finish(
    public: PublicGroupState,
    staged: StagedCommit,
    authenticated: AuthenticatedContent,
    init_secret: bytes,
    commit_secret: bytes,
    psk_secret: bytes,
) -> tuple[PublicGroupState, EpochSchedule]:
    """Derive the next epoch. The caller must check the confirmation tag."""
    suite = public.suite
    confirmed = confirmed_transcript_hash(suite, public.interim_transcript_hash, authenticated.confirmed_input())
    context = replace(staged.context, confirmed_transcript_hash=confirmed)
    joiner_secret = derive_joiner_secret(suite, init_secret, commit_secret, context.encode())
    schedule = derive_epoch(suite, joiner_secret, psk_secret, context.encode())
    tag = suite.mac(schedule.secrets.confirmation_key, confirmed)
    interim = interim_transcript_hash(suite, confirmed, tag)
    return PublicGroupState(context, staged.tree, interim, tag), schedule


def psk_secret(state: GroupState, psks: Sequence[PreSharedKeyID], external: Mapping[bytes, bytes]) -> bytes:
    """Return the combined secret of a commit's pre-shared keys. ``external``: the application's keys, by id."""
    return derive_psk_secret(state.suite, [(psk, _psk(state, psk, external)) for psk in psks])


def _psk(state: GroupState, psk: PreSharedKeyID, external: Mapping[bytes, bytes]) -> bytes:
    if psk.psktype == PSKType.EXTERNAL:
        return external_psk(psk, external)
    state.check_group(psk.psk_group_id)
    if psk.psk_epoch == state.context.epoch:
        return state.secrets.resumption_psk
    return state.past_epoch(psk.psk_epoch).resumption_psk


def external_psk(psk: PreSharedKeyID, external: Mapping[bytes, bytes]) -> bytes:
    """Return a pre-shared key of the application. Raises StateError if it is missing."""
    try:
        return external[psk.psk_id]
    except KeyError:
        raise StateError("a required pre-shared key is missing") from None
