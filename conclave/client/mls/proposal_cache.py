"""Proposals that wait for a commit (RFC 9420 sections 12.1, 12.2 and 12.4): which are kept, and which taken along.

What a proposal costs is paid when it comes: whether it can be committed alone is tried once, and kept with it.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from conclave.client.mls.commits import CommitInputs, CommitSpec, create_commit
from conclave.client.mls.crypto import make_proposal_ref
from conclave.client.mls.errors import LimitError, MlsError
from conclave.client.mls.framing import AuthenticatedContent, Sender, SenderType, member
from conclave.client.mls.proposal_lists import check_kind
from conclave.client.mls.proposals import Add, Proposal, Remove, Update
from conclave.client.mls.state import MAX_CACHED, MAX_CACHED_BYTES, MAX_CACHED_OF_ONE, CachedProposal, GroupState
from conclave.client.mls.validation import Policy

INCLUDABLE = (Add, Update, Remove)
"""Proposals that own commits take along. Members cannot be kept from committing others, as far as the policy goes."""


def cache_proposal(
    state: GroupState, authenticated: AuthenticatedContent, proposal: Proposal, inputs: CommitInputs
) -> GroupState:
    """Keep a proposal for the next commit, whoever makes it: another may find sound what this member does not.

    Raises InvalidError for a kind that no commit may have here, LimitError if too much waits.
    """
    check_kind(proposal, inputs.policy)
    sender = authenticated.content.sender
    reference = make_proposal_ref(state.suite, authenticated.encode())
    if any(cached.reference == reference for cached in state.proposals):
        return state
    new = CachedProposal(reference, sender, proposal, is_committable=False)
    same = [new, *(cached for cached in state.proposals if _quota_key(cached.sender) == _quota_key(sender))]
    if len(state.proposals) >= MAX_CACHED or len(same) > MAX_CACHED_OF_ONE:
        raise LimitError("more proposals wait for a commit than are kept")
    if sum(len(each.encode()) for each in same) > MAX_CACHED_BYTES:
        raise LimitError("the proposals of a member that wait for a commit have too many bytes")
    new = replace(new, is_committable=_can_be_committed(state, new, inputs))
    return replace(state, proposals=(*state.proposals, new))


def _quota_key(sender: Sender) -> tuple[SenderType, int]:
    """Return by what proposals are counted: their sender, all new members together as one."""
    return sender.sender_type, sender.index


def _can_be_committed(state: GroupState, cached: CachedProposal, inputs: CommitInputs) -> bool:
    """Make the whole commit, and drop it: also its path and its Welcome may fail."""
    if not isinstance(cached.proposal, INCLUDABLE):
        return False
    try:
        create_commit(replace(state, proposals=(cached,)), CommitSpec(references=(cached,)), inputs)
    except MlsError:
        return False
    return True


def _is_taken_along(cached: CachedProposal, policy: Policy) -> bool:
    """Tell whether own commits take a proposal along."""
    is_outside = cached.sender.sender_type == SenderType.NEW_MEMBER_PROPOSAL
    return cached.is_committable and (policy.admit_new_members or not is_outside)


def must_commit(state: GroupState, policy: Policy) -> bool:
    """Tell whether a commit must come before the next application data (section 12.4)."""
    own = member(state.own_index)
    return any(
        _is_taken_along(cached, policy) or (cached.sender == own and isinstance(cached.proposal, Update))
        for cached in state.proposals
    )


def committable_proposals(state: GroupState, wanted: Sequence[Proposal], policy: Policy) -> tuple[CachedProposal, ...]:
    """Return the cached proposals for the next own commit, besides those that are ``wanted`` in it.

    A Remove is preferred to an Update, and the newest to older ones (section 12.2). Together they may still fail.
    """
    own = member(state.own_index)
    taken = {claim for proposal in wanted for claim in _conflict_keys(own, proposal)}
    chosen: list[CachedProposal] = []
    newest_first = state.proposals[::-1]
    for cached in sorted(newest_first, key=lambda one: not isinstance(one.proposal, Remove)):
        claims = set(_conflict_keys(cached.sender, cached.proposal))
        if _is_taken_along(cached, policy) and taken.isdisjoint(claims):
            chosen.append(cached)
            taken |= claims
    return tuple(chosen)


def _conflict_keys(sender: Sender, proposal: Proposal) -> Iterator[Hashable]:
    """Return what a proposal needs for itself: of two that claim the same, one commit can have only one."""
    if isinstance(proposal, Remove):
        yield "leaf", proposal.removed
    elif isinstance(proposal, Update):
        yield "leaf", sender.index
        yield "key", proposal.leaf_node.encryption_key
    elif isinstance(proposal, Add):
        leaf = proposal.key_package.leaf_node
        yield from (("identity", leaf.credential), ("key", leaf.encryption_key), ("signature", leaf.signature_key))
