"""The cache of proposals for the next commit (RFC 9420 sections 12.1, 12.2 and 12.4).

When a proposal arrives, the client tries once whether it can be committed, and stores the result with it.
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
"""Proposals that own commits include. Other members may commit any type that the policy allows."""


def cache_proposal(
    state: GroupState, authenticated: AuthenticatedContent, proposal: Proposal, inputs: CommitInputs
) -> GroupState:
    """Cache a proposal for the next commit, even if own commits cannot include it: another member's commit may.

    Raises InvalidError for a type that the policy does not allow, LimitError if the cache is full.
    """
    check_kind(proposal, inputs.policy)
    sender = authenticated.content.sender
    reference = make_proposal_ref(state.suite, authenticated.encode())
    if any(cached.reference == reference for cached in state.proposals):
        return state
    cached_proposal = CachedProposal(reference, sender, proposal, is_committable=False)
    sender_proposals = [
        cached_proposal,
        *(cached for cached in state.proposals if _quota_key(cached.sender) == _quota_key(sender)),
    ]
    if len(state.proposals) >= MAX_CACHED or len(sender_proposals) > MAX_CACHED_OF_ONE:
        raise LimitError("too many proposals are pending")
    if sum(len(each.encode()) for each in sender_proposals) > MAX_CACHED_BYTES:
        raise LimitError("the pending proposals of a member have too many bytes")
    cached_proposal = replace(cached_proposal, is_committable=_can_be_committed(state, cached_proposal, inputs))
    return replace(state, proposals=(*state.proposals, cached_proposal))


def _quota_key(sender: Sender) -> tuple[SenderType, int]:
    """Return the key by which proposals are counted: the sender. All new members count as one sender."""
    return sender.sender_type, sender.index


def _can_be_committed(state: GroupState, cached: CachedProposal, inputs: CommitInputs) -> bool:
    """Return whether a commit with only this proposal can be created, including its path and Welcome."""
    if not isinstance(cached.proposal, INCLUDABLE):
        return False
    try:
        create_commit(replace(state, proposals=(cached,)), CommitSpec(references=(cached,)), inputs)
    except MlsError:
        return False
    return True


def _is_includable(cached: CachedProposal, policy: Policy) -> bool:
    """Return whether own commits include a proposal."""
    is_outside = cached.sender.sender_type == SenderType.NEW_MEMBER_PROPOSAL
    return cached.is_committable and (policy.admit_new_members or not is_outside)


def must_commit(state: GroupState, policy: Policy) -> bool:
    """Return whether a commit is needed before the next application message (section 12.4)."""
    own = member(state.own_index)
    return any(
        _is_includable(cached, policy) or (cached.sender == own and isinstance(cached.proposal, Update))
        for cached in state.proposals
    )


def committable_proposals(
    state: GroupState, proposals: Sequence[Proposal], policy: Policy
) -> tuple[CachedProposal, ...]:
    """Return the cached proposals for the next own commit, in addition to ``proposals``.

    Removes are preferred to Updates, and newer proposals to older ones (section 12.2). The combination may still be
    invalid.
    """
    own = member(state.own_index)
    used_keys = {key for proposal in proposals for key in _conflict_keys(own, proposal)}
    included: list[CachedProposal] = []
    newest_first = state.proposals[::-1]
    for cached in sorted(newest_first, key=lambda each: not isinstance(each.proposal, Remove)):
        keys = set(_conflict_keys(cached.sender, cached.proposal))
        if _is_includable(cached, policy) and used_keys.isdisjoint(keys):
            included.append(cached)
            used_keys |= keys
    return tuple(included)


def _conflict_keys(sender: Sender, proposal: Proposal) -> Iterator[Hashable]:
    """Yield the keys by which proposals conflict: a commit can have only one proposal for each key."""
    if isinstance(proposal, Remove):
        yield "leaf", proposal.removed
    elif isinstance(proposal, Update):
        yield "leaf", sender.index
        yield "key", proposal.leaf_node.encryption_key
    elif isinstance(proposal, Add):
        leaf = proposal.key_package.leaf_node
        yield from (("identity", leaf.credential), ("key", leaf.encryption_key), ("signature", leaf.signature_key))
