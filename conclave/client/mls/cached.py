"""Proposals that wait for a commit (RFC 9420 sections 12.1, 12.2 and 12.4): which are kept, and which taken along.

What a proposal costs is paid when it comes: whether it could be committed alone is checked once, and kept with it.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from conclave.client.mls.commits import Around
from conclave.client.mls.crypto import make_proposal_ref
from conclave.client.mls.errors import LimitError, MlsError
from conclave.client.mls.framing import AuthenticatedContent, Sender, SenderType, member
from conclave.client.mls.proposal_lists import Committed, apply, check_list
from conclave.client.mls.proposals import Add, GroupContextExtensions, PreSharedKey, Proposal, ReInit, Remove, Update
from conclave.client.mls.state import MAX_CACHED, MAX_CACHED_OF_ONE, CachedProposal, GroupState
from conclave.client.mls.validation import Policy, check_members


def cache_proposal(
    state: GroupState, authenticated: AuthenticatedContent, proposal: Proposal, around: Around
) -> GroupState:
    """Keep a proposal for the next commit, whoever makes it: another may find sound what this member does not."""
    sender = authenticated.content.sender
    reference = make_proposal_ref(state.suite, authenticated.encode())
    if any(cached.reference == reference for cached in state.proposals):
        return state
    same = sum(_whose(cached.sender) == _whose(sender) for cached in state.proposals)
    if len(state.proposals) >= MAX_CACHED or same >= MAX_CACHED_OF_ONE:
        raise LimitError("more proposals wait for a commit than are kept")
    sound = _may_be_committed(state, [Committed(sender, proposal)], around)
    return replace(state, proposals=(*state.proposals, CachedProposal(reference, sender, proposal, sound)))


def _whose(sender: Sender) -> tuple[SenderType, int]:
    """Return by what proposals are counted: their sender, all new members together as one."""
    return sender.sender_type, sender.index


def _may_be_committed(state: GroupState, committed: Sequence[Committed], around: Around) -> bool:
    try:
        check_list(committed, member(state.own_index))
        check_members(apply(state.public, committed, around.policy, around.now).tree)
    except MlsError:
        return False
    return True


def _is_taken_along(cached: CachedProposal, policy: Policy) -> bool:
    """Tell whether own commits take a proposal along; ReInit never, since nothing here goes on after it."""
    if isinstance(cached.proposal, ReInit) or not cached.sound:
        return False
    return policy.admit_new_members or cached.sender.sender_type != SenderType.NEW_MEMBER_PROPOSAL


def must_commit(state: GroupState, policy: Policy) -> bool:
    """Tell whether a commit must come before the next application data (section 12.4)."""
    own = member(state.own_index)
    return any(
        _is_taken_along(cached, policy) or (cached.sender == own and isinstance(cached.proposal, Update))
        for cached in state.proposals
    )


def committable(state: GroupState, wanted: Sequence[Proposal], around: Around) -> tuple[CachedProposal, ...]:
    """Return the cached proposals that the next own commit takes along, besides those that are ``wanted`` in it.

    A Remove is preferred to an Update, and the newest to older ones (section 12.2).
    """
    own = member(state.own_index)
    by_value = [Committed(own, proposal) for proposal in wanted]
    taken = {claim for one in by_value for claim in _claims(one.sender, one.proposal)}
    chosen: list[CachedProposal] = []
    newest_first = state.proposals[::-1]
    for cached in sorted(newest_first, key=lambda one: not isinstance(one.proposal, Remove)):
        claims = set(_claims(cached.sender, cached.proposal))
        if _is_taken_along(cached, around.policy) and taken.isdisjoint(claims):
            chosen.append(cached)
            taken |= claims
    by_reference = [Committed(cached.sender, cached.proposal) for cached in chosen]
    return tuple(chosen) if chosen and _may_be_committed(state, [*by_reference, *by_value], around) else ()


def _claims(sender: Sender, proposal: Proposal) -> Iterator[Hashable]:
    """Return what a proposal needs for itself: of two that claim the same, one commit can have only one."""
    if isinstance(proposal, Remove):
        yield "leaf", proposal.removed
    elif isinstance(proposal, Update):
        yield "leaf", sender.index
        yield "key", proposal.leaf_node.encryption_key
    elif isinstance(proposal, Add):
        leaf = proposal.key_package.leaf_node
        yield from (("identity", leaf.credential), ("key", leaf.encryption_key), ("signature", leaf.signature_key))
    elif isinstance(proposal, PreSharedKey):
        yield "psk", proposal.psk
    elif isinstance(proposal, GroupContextExtensions):
        yield "extensions"
