"""What a message or a group info says of itself in the clear. Pure; none of it is checked, so it proves nothing."""

from typing import NamedTuple

from conclave.client.mls import MlsError, decode_message
from conclave.client.mls.framing import ContentType, PrivateMessage, PublicMessage
from conclave.client.mls.proposals import Commit
from conclave.client.mls.welcome import GroupInfo


class Header(NamedTuple):
    """A message. ``tag``: the confirmation tag of a commit, if it is not encrypted."""

    mls_group_id: bytes
    epoch: int
    is_commit: bool
    is_application: bool
    tag: bytes


def read_header(payload: bytes) -> Header | None:
    """Return what a message says of itself; None if it is no message of MLS."""
    try:
        body = decode_message(payload)
    except MlsError:
        return None
    if isinstance(body, PublicMessage):
        is_commit = isinstance(body.content.content, Commit)
        tag = (body.auth.confirmation_tag or b"") if is_commit else b""
        return Header(body.content.group_id, body.content.epoch, is_commit, is_application=False, tag=tag)
    if isinstance(body, PrivateMessage):
        is_application = body.content_type == ContentType.APPLICATION
        return Header(body.group_id, body.epoch, body.content_type == ContentType.COMMIT, is_application, b"")
    return None


def key_in(info: bytes, identity: bytes) -> bytes | None:
    """Return the signature key that a group info has for an identity; None if it has none, or is none of MLS."""
    try:
        body = decode_message(info)
        tree = body.tree(None) if isinstance(body, GroupInfo) else None
    except MlsError:
        return None
    leaves = tree.leaves() if tree else ()
    return next((leaf.signature_key for _, leaf in leaves if leaf.credential.identity == identity), None)


class InfoHeader(NamedTuple):
    """A group info."""

    mls_group_id: bytes
    epoch: int
    tag: bytes


def read_info(info: bytes) -> InfoHeader | None:
    """Return what a group info says of itself; None if it is none of MLS."""
    try:
        body = decode_message(info)
    except MlsError:
        return None
    if not isinstance(body, GroupInfo):
        return None
    return InfoHeader(body.group_context.group_id, body.group_context.epoch, body.confirmation_tag)
