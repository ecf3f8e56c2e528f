"""Creating and cancelling invites."""

from dataclasses import dataclass

from conclave.wire.fields import Bytes, Identifier, required
from conclave.wire.schemas.base import RequestSchema


@dataclass(frozen=True)
class EscrowInvite:
    """The invitee, and the messages to publish on acceptance."""

    invitee_id: bytes
    commit_message: bytes
    welcome_message: bytes
    group_info: bytes


class EscrowInviteRequest(RequestSchema):
    """An invite, with the commit, the welcome and the group info that take effect on acceptance."""

    result_class = EscrowInvite

    invitee_id = required(Identifier)
    commit_message = required(Bytes)
    welcome_message = required(Bytes)
    group_info = required(Bytes)


@dataclass(frozen=True)
class CancelInvite:
    """The user whose invite is cancelled."""

    invitee_id: bytes


class CancelInviteRequest(RequestSchema):
    """The user whose invite is cancelled."""

    result_class = CancelInvite

    invitee_id = required(Identifier)
