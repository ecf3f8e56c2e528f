"""Checks and applies lists of proposals (RFC 9420 sections 12.2 and 12.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from conclave.client.mls.credentials import Extension
from conclave.client.mls.errors import DisallowedProposalError, InvalidError
from conclave.client.mls.framing import Sender, SenderType
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.key_schedule import PreSharedKeyID, PSKType, ResumptionPSKUsage
from conclave.client.mls.nodes import MLS10, LeafNode, LeafNodeSource
from conclave.client.mls.proposals import (
    Add,
    ExternalInit,
    GroupContextExtensions,
    PreSharedKey,
    Proposal,
    ReInit,
    Remove,
    Update,
)
from conclave.client.mls.state import PublicGroupState
from conclave.client.mls.tree import RatchetTree
from conclave.client.mls.validation import LeafRules, Policy, check_extensions, check_key_package, check_leaf


@dataclass(frozen=True)
class CommittedProposal:
    """A proposal in a commit, with its sender."""

    sender: Sender
    proposal: Proposal


@dataclass(frozen=True)
class AppliedProposals:
    """The result of applying a list of proposals: new tree, new extensions, and the inputs of the next steps."""

    tree: RatchetTree
    rules: LeafRules
    added: dict[int, KeyPackage]
    removed: tuple[int, ...]
    updated: tuple[int, ...]
    psks: tuple[PreSharedKeyID, ...]
    kem_output: bytes | None
    reinit: bool

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The new extensions of the group."""
        return self.rules.extensions


def leaf_rules(public: PublicGroupState, policy: Policy, now: int) -> LeafRules:
    """Return the rules for leaves in an epoch."""
    return LeafRules(public.suite, public.context.group_id, public.context.extensions, policy, now)


def _count(committed: Sequence[CommittedProposal], kind: type[Proposal]) -> int:
    return sum(isinstance(each.proposal, kind) for each in committed)


def check_kind(proposal: Proposal, policy: Policy) -> None:
    """Check that the policy allows a proposal's type. Raises DisallowedProposalError."""
    if proposal.proposal_type not in policy.proposals:
        raise DisallowedProposalError(f"proposals of type {proposal.proposal_type:d} are not allowed")


def check_list(committed: Sequence[CommittedProposal], committer: Sender) -> None:
    """Check that the proposals of a commit are valid together (section 12.2)."""
    if committer.sender_type == SenderType.NEW_MEMBER_COMMIT:
        _check_external_list(committed)
    else:
        _check_regular_list(committed, committer.index)
    psks = [each.proposal.psk for each in committed if isinstance(each.proposal, PreSharedKey)]
    if len(set(psks)) != len(psks):
        raise InvalidError("a commit has one pre-shared key twice")


def _check_regular_list(committed: Sequence[CommittedProposal], committer: int) -> None:
    if _count(committed, ExternalInit):
        raise InvalidError("a member's commit has an ExternalInit proposal")
    if _count(committed, GroupContextExtensions) > 1:
        raise InvalidError("a commit changes the extensions of the group twice")
    if _count(committed, ReInit) and len(committed) > 1:
        raise InvalidError("a commit has ReInit and other proposals")
    changed_leaves = []
    for each in committed:
        if isinstance(each.proposal, Update):
            if each.sender.sender_type != SenderType.MEMBER or each.sender.index == committer:
                raise InvalidError("a commit has an Update of the committer, or of a sender who is not a member")
            changed_leaves.append(each.sender.index)
        elif isinstance(each.proposal, Remove):
            if each.proposal.removed == committer:
                raise InvalidError("a committer removes itself")
            changed_leaves.append(each.proposal.removed)
    if len(set(changed_leaves)) != len(changed_leaves):
        raise InvalidError("a commit updates or removes one member twice")


def _check_external_list(committed: Sequence[CommittedProposal]) -> None:
    if _count(committed, ExternalInit) != 1:
        raise InvalidError("an external commit needs exactly one ExternalInit")
    if _count(committed, Remove) > 1:
        raise InvalidError("an external commit removes more than one leaf")
    if not all(isinstance(each.proposal, ExternalInit | Remove | PreSharedKey) for each in committed):
        raise InvalidError("an external commit has a proposal that only members may commit")
    if any(each.sender.sender_type != SenderType.NEW_MEMBER_COMMIT for each in committed):
        raise InvalidError("an external commit has a proposal of another sender")


def check_psk(psk: PreSharedKeyID, public: PublicGroupState) -> None:
    """Check a proposed pre-shared key (section 12.1.4)."""
    if psk.psktype == PSKType.RESUMPTION and psk.usage != ResumptionPSKUsage.APPLICATION:
        raise InvalidError("a resumption key has a usage that commits do not allow")
    if len(psk.psk_nonce) != public.suite.kdf.size:
        raise InvalidError("a pre-shared key has a nonce of the wrong length")


def check_successor(old: LeafNode, new: LeafNode) -> None:
    """Check that a leaf may replace another (sections 5.3.1 and 7.3)."""
    if new.credential != old.credential:
        raise InvalidError("a member changes its identity")
    if new.encryption_key == old.encryption_key:
        raise InvalidError("a renewed leaf has the old key")


def apply(
    public: PublicGroupState, committed: Sequence[CommittedProposal], policy: Policy, now: int
) -> AppliedProposals:
    """Check each proposal of a valid list, and apply all of them in the order of section 12.3."""
    rules = _rules_after(public, committed, policy, now)
    tree, updated = _with_updates(public.tree, committed, rules)
    tree, removed = _with_removes(tree, committed)
    tree, added = _with_adds(tree, committed, rules)
    if _count(committed, GroupContextExtensions):
        check_extensions(rules.extensions, tree, policy)
    proposals = [each.proposal for each in committed]
    return AppliedProposals(
        tree,
        rules,
        added,
        removed,
        updated,
        psks=tuple(proposal.psk for proposal in proposals if isinstance(proposal, PreSharedKey)),
        kem_output=next((proposal.kem_output for proposal in proposals if isinstance(proposal, ExternalInit)), None),
        reinit=_count(committed, ReInit) > 0,
    )


def _rules_after(
    public: PublicGroupState, committed: Sequence[CommittedProposal], policy: Policy, now: int
) -> LeafRules:
    """Check proposals that do not change the tree; return the rules with the new extensions."""
    rules = leaf_rules(public, policy, now)
    for each in committed:
        check_kind(each.proposal, policy)
        if isinstance(each.proposal, GroupContextExtensions):
            rules = replace(rules, extensions=each.proposal.extensions)
        elif isinstance(each.proposal, ReInit) and each.proposal.version < MLS10:
            raise InvalidError("a ReInit has an older version of the protocol")
        elif isinstance(each.proposal, PreSharedKey):
            check_psk(each.proposal.psk, public)
    return rules


def _with_updates(
    tree: RatchetTree, committed: Sequence[CommittedProposal], rules: LeafRules
) -> tuple[RatchetTree, tuple[int, ...]]:
    updated = []
    for each in committed:
        if isinstance(each.proposal, Update):
            check_leaf(each.proposal.leaf_node, LeafNodeSource.UPDATE, each.sender.index, rules)
            check_successor(tree.member(each.sender.index), each.proposal.leaf_node)
            tree = tree.updated(each.sender.index, each.proposal.leaf_node)
            updated.append(each.sender.index)
    return tree, tuple(updated)


def _with_removes(tree: RatchetTree, committed: Sequence[CommittedProposal]) -> tuple[RatchetTree, tuple[int, ...]]:
    removed = []
    for each in committed:
        if isinstance(each.proposal, Remove):
            tree.member(each.proposal.removed)
            tree = tree.removed(each.proposal.removed)
            removed.append(each.proposal.removed)
    return (tree.truncated() if removed else tree), tuple(removed)


def _with_adds(
    tree: RatchetTree, committed: Sequence[CommittedProposal], rules: LeafRules
) -> tuple[RatchetTree, dict[int, KeyPackage]]:
    added = {}
    for each in committed:
        if isinstance(each.proposal, Add):
            check_key_package(each.proposal.key_package, rules)
            tree, leaf_index = tree.added(each.proposal.key_package.leaf_node)
            added[leaf_index] = each.proposal.key_package
    return tree, added
