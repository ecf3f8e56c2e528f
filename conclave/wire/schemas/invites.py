"""Invites that wait for an answer, and the welcomes that follow."""

from dataclasses import dataclass

from conclave.wire.fields import Bytes, Identifier, required
from conclave.wire.schemas.base import RequestSchema


@dataclass(frozen=True)
class EscrowInvite:
    """Whom to invite, and what the invite carries."""

    invitee_id: bytes
    commit_message: bytes
    welcome_message: bytes
    group_info: bytes


class EscrowInviteRequest(RequestSchema):
    """An invite, with everything that is needed once it is accepted."""

    result_class = EscrowInvite

    invitee_id = required(Identifier)
    commit_message = required(Bytes)
    welcome_message = required(Bytes)
    group_info = required(Bytes)


@dataclass(frozen=True)
class CancelInvite:
    """Whose invite to withdraw."""

    invitee_id: bytes


class CancelInviteRequest(RequestSchema):
    """Whose invite to withdraw."""

    result_class = CancelInvite

    invitee_id = required(Identifier)
