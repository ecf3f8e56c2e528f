"""Creates groups, and joins them with a Welcome or an external commit (RFC 9420 sections 11 and 12.4.3)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from conclave.client.mls import tree_math
from conclave.client.mls.commits import CommitInputs, CommitSpec, create_path, signed_commit, with_tag
from conclave.client.mls.credentials import Extension
from conclave.client.mls.crypto import check_equal, derive_secret, random_secret, zeros
from conclave.client.mls.errors import InvalidError, WrongRecipientError
from conclave.client.mls.framing import Sender, SenderType, encode_message
from conclave.client.mls.key_packages import OwnKeyPackage
from conclave.client.mls.key_schedule import (
    EpochSchedule,
    GroupContext,
    PreSharedKeyID,
    PSKType,
    derive_epoch,
    derive_psk_secret,
    derive_welcome_secret,
    epoch_secrets,
    external_init,
    interim_transcript_hash,
)
from conclave.client.mls.proposal_lists import CommittedProposal, apply, leaf_rules
from conclave.client.mls.proposals import Commit, ExternalInit, Proposal, ProposalOrRef, Remove
from conclave.client.mls.protection import protect_public
from conclave.client.mls.state import GroupState, MlsMember, PublicGroupState, member_at, message_hash, new_epoch_state
from conclave.client.mls.transition import committer_of, external_psk, finish, stage
from conclave.client.mls.tree import RatchetTree
from conclave.client.mls.treekem import derive_path
from conclave.client.mls.validation import LeafRules, Policy, check_extensions, check_leaf, check_tree
from conclave.client.mls.welcome import GroupInfo, GroupSecrets, Welcome


def create(
    own: OwnKeyPackage, group_id: bytes, extensions: tuple[Extension, ...], policy: Policy, now: int
) -> GroupState:
    """Create a group with one member (section 11)."""
    suite, leaf = own.suite, own.key_package.leaf_node
    tree = RatchetTree(suite, (leaf,))
    check_leaf(leaf, leaf.leaf_node_source, 0, LeafRules(suite, group_id, extensions, policy, now))
    check_extensions(extensions, tree, policy)
    context = GroupContext(suite.number, group_id, 0, tree.tree_hash(), b"", extensions)
    secrets = epoch_secrets(suite, epoch_secret := random_secret(suite))
    tag = suite.mac(secrets.confirmation_key, b"")
    public = PublicGroupState(context, tree, interim_transcript_hash(suite, b"", tag), tag)
    encryption_secret = derive_secret(suite, epoch_secret, "encryption")
    schedule = EpochSchedule(secrets, b"", b"", encryption_secret)
    return new_epoch_state(public, 0, own.signature_private, {0: own.encryption_private}, schedule)


# With a Welcome


def join(
    welcome: Welcome,
    own_key_packages: Sequence[OwnKeyPackage],
    inputs: CommitInputs,
    known_groups: Collection[bytes] = (),
    tree: bytes | None = None,
) -> tuple[GroupState, OwnKeyPackage, MlsMember]:
    """Join with a Welcome (section 12.4.3.1): return the state, the used key package, and the signer.

    ``known_groups``: ids of the groups that this client is in. ``tree``: the tree, if the Welcome has none.
    """
    own, secrets = _find_secrets(welcome, own_key_packages)
    suite = own.suite
    psk = derive_psk_secret(suite, [(psk_id, _joining_psk(psk_id, inputs)) for psk_id in secrets.psks])
    welcome_secret = derive_welcome_secret(suite, secrets.joiner_secret, psk)
    info = welcome.group_info(suite, welcome_secret)
    if info.group_context.cipher_suite != suite.number:
        raise InvalidError("a group has another cipher suite than the key package")
    public = _checked_public(info, tree, inputs)
    if info.group_context.group_id in known_groups:
        raise InvalidError("a Welcome is for a group that this client is already in")
    leaf = own.key_package.leaf_node
    own_index = next((i for i, each in public.tree.leaves() if each == leaf), None)
    if own_index is None or own_index == info.signer:
        raise InvalidError("a Welcome is for a group to which this client was not added")
    keys = {2 * own_index: own.encryption_private}
    if secrets.path_secret is not None:
        keys |= _path_keys(public.tree, info.signer, own_index, secrets.path_secret.path_secret)
    schedule = derive_epoch(suite, secrets.joiner_secret, psk, info.group_context.encode())
    tag = suite.mac(schedule.secrets.confirmation_key, info.group_context.confirmed_transcript_hash)
    check_equal(info.confirmation_tag, tag, "the confirmation tag of a group info is wrong")
    signer = member_at(info.signer, public.tree.member(info.signer))
    return new_epoch_state(public, own_index, own.signature_private, keys, schedule), own, signer


def _find_secrets(welcome: Welcome, own_key_packages: Sequence[OwnKeyPackage]) -> tuple[OwnKeyPackage, GroupSecrets]:
    for own in own_key_packages:
        if own.key_package.cipher_suite == welcome.cipher_suite:
            secrets = welcome.group_secrets(own)
            if secrets is not None:
                return own, secrets
    raise WrongRecipientError("a Welcome is for none of this client's key packages")


def _joining_psk(psk: PreSharedKeyID, inputs: CommitInputs) -> bytes:
    if psk.psktype != PSKType.EXTERNAL:
        raise InvalidError("a Welcome needs a resumption key, which this client does not have")
    return external_psk(psk, inputs.psks)


def _checked_public(info: GroupInfo, external_tree: bytes | None, inputs: CommitInputs) -> PublicGroupState:
    """Check a group info and its tree, but not its confirmation tag, which needs the group's secrets."""
    tree, context = info.tree(external_tree), info.group_context
    info.check_signature(tree)
    confirmed = context.confirmed_transcript_hash
    interim = interim_transcript_hash(tree.suite, confirmed, info.confirmation_tag)
    public = PublicGroupState(context, tree, interim, info.confirmation_tag)
    check_tree(tree, leaf_rules(public, inputs.policy, inputs.now))
    return public


def _path_keys(tree: RatchetTree, signer: int, own_index: int, path_secret: bytes) -> dict[int, bytes]:
    """Derive private keys from the common ancestor upwards. Each must match the key in the tree."""
    lowest = tree_math.common_ancestor(signer, own_index)
    nodes = [x for x, _ in tree.filtered_direct_path(signer) if tree_math.level(x) >= tree_math.level(lowest)]
    path = derive_path(tree.suite, nodes, path_secret)
    for x, pair in path.keys.items():
        node = tree.parent(x)
        public = b"" if node is None else node.encryption_key
        check_equal(public, pair.public, "a Welcome has a key that differs from the one in the tree")
    return {x: pair.private for x, pair in path.keys.items()}


# With an external commit


@dataclass(frozen=True)
class ExternalJoinResult:
    """An external commit, as sent, and the state after it."""

    message: bytes
    state: GroupState


def external_join(
    info: GroupInfo,
    own: OwnKeyPackage,
    inputs: CommitInputs,
    *,
    resync: bool = False,
    tree: bytes | None = None,
    authenticated_data: bytes = b"",
) -> ExternalJoinResult:
    """Join with an external commit (section 12.4.3.2).

    ``own``: provides the identity and the signature key; other keys are new. ``resync``: remove an old own leaf.
    """
    public = _checked_public(info, tree, inputs)
    suite, leaf = public.suite, own.key_package.leaf_node
    if info.external_pub is None:
        raise InvalidError("this group does not allow external commits")
    suite.kem.check_public(info.external_pub, "a group info has an external key")
    if own.suite != suite:
        raise InvalidError("a group has another cipher suite than the key package")
    kem_output, init_secret = external_init(suite, info.external_pub)
    proposals: list[Proposal] = [ExternalInit(kem_output)]
    old_index = next((i for i, each in public.tree.leaves() if each.credential == leaf.credential), None)
    if resync and old_index is not None:
        proposals.append(Remove(old_index))
    sender = Sender(SenderType.NEW_MEMBER_COMMIT)
    committed = [CommittedProposal(sender, proposal) for proposal in proposals]
    applied = apply(public, committed, inputs.policy, inputs.now)
    committer = committer_of(applied, sender)
    path, own_path, secrets = create_path(public, applied, committer, leaf, own.signature_private)
    commit = Commit(tuple(map(ProposalOrRef, proposals)), path)
    spec = CommitSpec(authenticated_data=authenticated_data)
    authenticated = signed_commit(public, own.signature_private, commit, sender, spec)
    staged = stage(public, commit, sender, committed, inputs.policy, inputs.now)
    new, schedule = finish(public, staged, authenticated, init_secret, secrets.commit_secret, zeros(suite))
    keys = {x: pair.private for x, pair in secrets.keys.items()} | {2 * committer: own_path.leaf_private}
    state = new_epoch_state(new, committer, own.signature_private, keys, schedule)
    message = encode_message(protect_public(suite, with_tag(authenticated, new), b"", b""))
    return ExternalJoinResult(message, replace(state, entered_by=message_hash(message)))
