"""Reads the plaintext headers of messages and group infos, without authentication. Pure."""

from typing import NamedTuple

from conclave.client.mls import MlsError, decode_message
from conclave.client.mls.framing import ContentType, PrivateMessage, PublicMessage, SenderType
from conclave.client.mls.proposals import Commit
from conclave.client.mls.welcome import GroupInfo


class MessageHeader(NamedTuple):
    """The header of a message. ``tag``: the confirmation tag of a commit, if it is not encrypted.

    ``is_external``: it is an external commit, by which the sender joins. ``may_change_members``: it may add or remove
    others.
    """

    mls_group_id: bytes
    epoch: int
    is_commit: bool
    is_application: bool
    tag: bytes = b""
    is_external: bool = False
    may_change_members: bool = False


def read_header(payload: bytes) -> MessageHeader | None:
    """Return the header of a message; None if it is not an MLS message."""
    try:
        body = decode_message(payload)
    except MlsError:
        return None
    if isinstance(body, PublicMessage):
        content = body.content
        if not isinstance(content.content, Commit):
            return MessageHeader(content.group_id, content.epoch, False, False, may_change_members=True)  # noqa: FBT003 - no commit, no text
        is_external = content.sender.sender_type == SenderType.NEW_MEMBER_COMMIT
        details = body.auth.confirmation_tag or b"", is_external, bool(content.content.proposals) and not is_external
        return MessageHeader(content.group_id, content.epoch, True, False, *details)  # noqa: FBT003 - a commit, no text
    if isinstance(body, PrivateMessage):
        is_application = body.content_type == ContentType.APPLICATION
        is_commit = body.content_type == ContentType.COMMIT
        return MessageHeader(
            body.group_id, body.epoch, is_commit, is_application, may_change_members=not is_application
        )
    return None


def find_signature_key(info: bytes, identity: bytes) -> bytes | None:
    """Return the signature key of an identity in a group info; None if it has none, or is malformed."""
    try:
        body = decode_message(info)
        tree = body.tree(None) if isinstance(body, GroupInfo) else None
    except MlsError:
        return None
    leaves = tree.leaves() if tree else ()
    return next((leaf.signature_key for _, leaf in leaves if leaf.credential.identity == identity), None)


class GroupInfoHeader(NamedTuple):
    """The header of a group info."""

    mls_group_id: bytes
    epoch: int
    tag: bytes


def read_group_info(info: bytes) -> GroupInfoHeader | None:
    """Return the header of a group info; None if it is malformed."""
    try:
        body = decode_message(info)
    except MlsError:
        return None
    if not isinstance(body, GroupInfo):
        return None
    return GroupInfoHeader(body.group_context.group_id, body.group_context.epoch, body.confirmation_tag)


class GroupInfoSigner(NamedTuple):
    """The signer of a group info, as found in its tree."""

    identity: bytes
    signature_key: bytes


def read_signer(info: bytes) -> GroupInfoSigner | None:
    """Return the signer of a group info; None if its tree has no such member. The signature is not checked."""
    try:
        body = decode_message(info)
        leaf = body.tree(None).leaf(body.signer) if isinstance(body, GroupInfo) else None
    except MlsError:
        return None
    return GroupInfoSigner(leaf.credential.identity, leaf.signature_key) if leaf else None
