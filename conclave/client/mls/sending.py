"""Signs and protects messages to send (RFC 9420 section 6)."""

from dataclasses import replace

from conclave.client.mls.codec import MAX_MESSAGE
from conclave.client.mls.errors import LimitError
from conclave.client.mls.framing import (
    AuthenticatedContent,
    Content,
    FramedContent,
    FramedContentAuthData,
    WireFormat,
    encode_message,
    member,
)
from conclave.client.mls.protection import protect_private, protect_public, sign
from conclave.client.mls.state import GroupState


def signed(
    state: GroupState, content: Content, authenticated_data: bytes, wire_format: WireFormat
) -> AuthenticatedContent:
    """Sign a content as this member. Commits are signed in ``commits``, since they need a tag."""
    context = state.context
    framed = FramedContent(context.group_id, context.epoch, member(state.own_index), authenticated_data, content)
    signature = sign(state.suite, wire_format, framed, state.signature_private, context.encode())
    return AuthenticatedContent(wire_format, framed, FramedContentAuthData(signature))


def protected(state: GroupState, authenticated: AuthenticatedContent) -> tuple[GroupState, bytes]:
    """Return the state without the used key, and the encoded message."""
    if authenticated.wire_format == WireFormat.PUBLIC_MESSAGE:
        context = state.context.encode()
        public = protect_public(state.suite, authenticated, state.secrets.membership_key, context)
        return state, _check_size(encode_message(public))
    secrets = state.secrets.sender_data_secret
    private, secret_tree = protect_private(state.suite, authenticated, state.secret_tree, secrets)
    return replace(state, secret_tree=secret_tree), _check_size(encode_message(private))


def _check_size(message: bytes) -> bytes:
    if len(message) > MAX_MESSAGE:
        raise LimitError(f"a message has {len(message)} bytes, more than {MAX_MESSAGE}")
    return message
