"""Processes received messages (RFC 9420 sections 6, 12.1, 12.4.2, 15.2): checks them before the state changes."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from conclave.client.mls.codec import decode
from conclave.client.mls.commits import CommitEffect, CommitInputs, OwnPath, apply_commit
from conclave.client.mls.credentials import ExtensionType, find_extension, read_external_senders
from conclave.client.mls.errors import InvalidError, OutdatedStateError, OwnMessageError, StaleError
from conclave.client.mls.framing import (
    AuthenticatedContent,
    ContentType,
    PrivateMessage,
    PublicMessage,
    Sender,
    SenderType,
    WireFormat,
)
from conclave.client.mls.proposal_cache import cache_proposal
from conclave.client.mls.proposals import FROM_EXTERNAL, Add, Commit, Proposal
from conclave.client.mls.protection import check_signature, unprotect_private, unprotect_public
from conclave.client.mls.state import (
    GroupState,
    MlsMember,
    member_at,
)


@dataclass(frozen=True, repr=False)
class ApplicationMessage:
    """A member's application message. ``sender``: the member at that leaf in the message's epoch."""

    sender: MlsMember
    data: bytes
    authenticated_data: bytes
    epoch: int


@dataclass(frozen=True)
class ProposalArrived:
    """A proposal arrived, and was cached."""

    sender: Sender
    proposal: Proposal
    authenticated_data: bytes


@dataclass(frozen=True)
class CommitApplied:
    """A commit was applied. ``own``: it is this member's, or the one by which it joined."""

    effect: CommitEffect | None
    authenticated_data: bytes
    epoch: int
    own: bool


Received: TypeAlias = ApplicationMessage | ProposalArrived | CommitApplied


def receive_private(
    state: GroupState, message: PrivateMessage, inputs: CommitInputs
) -> tuple[GroupState | None, Received]:
    """Process a private message: any content of this epoch, or application data of the last MAX_PAST epochs."""
    state.check_group(message.group_id)
    if message.epoch != state.context.epoch:
        return _receive_late(state, message)
    authenticated, secret_tree = unprotect_private(
        state.suite,
        message,
        state.secret_tree,
        state.secrets.sender_data_secret,
        state.own_index,
        lambda leaf_index: state.tree.leaf(leaf_index) is not None,
    )
    leaf_index = authenticated.content.sender.index
    sender = member_at(leaf_index, state.tree.member(leaf_index))
    check_signature(state.suite, authenticated, sender.signature_key, state.context.encode())
    _check_not_own(leaf_index, state.own_index)
    state = replace(state, secret_tree=secret_tree)
    if isinstance(authenticated.content.content, bytes):
        return state, _application_message(authenticated, sender)
    return _take_handshake(state, authenticated, inputs)


def _receive_late(state: GroupState, message: PrivateMessage) -> tuple[GroupState, Received]:
    if message.epoch > state.context.epoch:
        raise StaleError(f"a message is of epoch {message.epoch}, which the group has not reached")
    if message.content_type != ContentType.APPLICATION:
        raise StaleError(f"a proposal or commit is of past epoch {message.epoch}")
    past = state.past_epoch(message.epoch)
    authenticated, secret_tree = unprotect_private(
        state.suite,
        message,
        past.secret_tree,
        past.sender_data_secret,
        past.own_index,
        past.senders.__contains__,
    )
    sender = past.senders[authenticated.content.sender.index]
    check_signature(state.suite, authenticated, sender.signature_key, past.context.encode())
    _check_not_own(sender.leaf_index, past.own_index)
    return state.with_past(replace(past, secret_tree=secret_tree)), _application_message(authenticated, sender)


def _check_not_own(sender: int, own_index: int) -> None:
    """Raise OutdatedStateError for a message from another copy of this state, which would use keys twice."""
    if sender == own_index:
        raise OutdatedStateError("a message is signed by the own key, but was not made from this state")


def _application_message(authenticated: AuthenticatedContent, sender: MlsMember) -> ApplicationMessage:
    content = authenticated.content
    data = content.content
    if not isinstance(data, bytes):
        raise InvalidError("a message is not application data")
    return ApplicationMessage(sender, data, content.authenticated_data, content.epoch)


def receive_public(
    state: GroupState, message: PublicMessage, inputs: CommitInputs
) -> tuple[GroupState | None, Received]:
    """Process a public message: a proposal or a commit of this epoch."""
    content = message.content
    state.check_group(content.group_id)
    if content.epoch != state.context.epoch:
        _check_late_change(state, message)
        raise StaleError(f"a proposal or commit is of epoch {content.epoch}, the group is in {state.context.epoch}")
    is_own = content.sender == Sender(SenderType.MEMBER, state.own_index)
    if is_own and not isinstance(content.content, Commit):
        raise OwnMessageError("a proposal is the reader's own, and is already cached")
    context = state.context.encode()
    authenticated = unprotect_public(state.suite, message, state.secrets.membership_key, context)
    check_signature(state.suite, authenticated, _signature_key(state, authenticated), context)
    if is_own:
        _check_not_own(content.sender.index, state.own_index)
    return _take_handshake(state, authenticated, inputs)


def _check_late_change(state: GroupState, message: PublicMessage) -> None:
    """Check the signature of a proposal or commit of a stored past epoch. If it is valid, the message is only late."""
    content = message.content
    past = next((each for each in state.past if each.context.epoch == content.epoch), None)
    if past is None:
        return
    if content.sender.sender_type == SenderType.MEMBER:
        sender = past.senders.get(content.sender.index)
        key = sender.signature_key if sender else b""
    elif isinstance(content.content, Commit) and content.content.path is not None:
        key = content.content.path.leaf_node.signature_key
    else:
        return
    authenticated = AuthenticatedContent(WireFormat.PUBLIC_MESSAGE, content, message.auth)
    check_signature(state.suite, authenticated, key, past.context.encode())


def _signature_key(state: GroupState, authenticated: AuthenticatedContent) -> bytes:
    """Return the key that must have signed a message, according to its sender type (section 6.1)."""
    sender, content = authenticated.content.sender, authenticated.content.content
    if sender.sender_type == SenderType.MEMBER:
        return state.tree.member(sender.index).signature_key
    if sender.sender_type == SenderType.NEW_MEMBER_COMMIT:
        if not isinstance(content, Commit) or content.path is None:
            raise InvalidError("a new member sent a message other than a commit with a path")
        return content.path.leaf_node.signature_key
    if sender.sender_type == SenderType.NEW_MEMBER_PROPOSAL:
        if not isinstance(content, Add):
            raise InvalidError("a new member proposes a change other than its Add")
        return content.key_package.leaf_node.signature_key
    if not isinstance(content, FROM_EXTERNAL):
        raise InvalidError("an external sender sent a message that only members may send")
    data = find_extension(state.context.extensions, ExtensionType.EXTERNAL_SENDERS)
    senders = () if data is None else decode(data, read_external_senders)
    if sender.index >= len(senders):
        raise InvalidError("an external sender is not in the group's list")
    return senders[sender.index].signature_key


def _take_handshake(
    state: GroupState, authenticated: AuthenticatedContent, inputs: CommitInputs
) -> tuple[GroupState | None, Received]:
    content = authenticated.content
    if isinstance(content.content, Commit):
        return take_commit(state, authenticated, None, inputs)
    if isinstance(content.content, bytes):
        raise InvalidError("application data is not encrypted")
    state = cache_proposal(state, authenticated, content.content, inputs)
    return state, ProposalArrived(content.sender, content.content, content.authenticated_data)


def take_commit(
    state: GroupState, authenticated: AuthenticatedContent, own: OwnPath | None, inputs: CommitInputs
) -> tuple[GroupState | None, CommitApplied]:
    """Apply a commit. Pending own commits of this epoch become void."""
    new, effect = apply_commit(state, authenticated, own, inputs)
    data = authenticated.content.authenticated_data
    return new, CommitApplied(effect, data, state.context.epoch + 1, own is not None)
