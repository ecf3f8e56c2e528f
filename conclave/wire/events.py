"""The events of the protocol as frozen dataclasses, like those in ``results``."""

from dataclasses import dataclass
from uuid import UUID

from conclave.wire.results import WireMessage


@dataclass(frozen=True)
class NewMessage(WireMessage):
    """A message was sent."""

    wire = "NewMessageEvent"

    group_id: UUID
    sequence_num: int
    sender_id: UUID


@dataclass(frozen=True)
class GroupUpdate(WireMessage):
    """The group has changed. ``update_type``: commit, group_settings or role_change."""

    wire = "GroupUpdateEvent"

    group_id: UUID
    update_type: str


@dataclass(frozen=True)
class WelcomeWaits(WireMessage):
    """The user has become a member and has a pending welcome."""

    wire = "WelcomeEvent"

    group_id: UUID
    group_alias: str


@dataclass(frozen=True)
class MemberRemoved(WireMessage):
    """A user is no longer a member."""

    wire = "MemberRemovedEvent"

    group_id: UUID
    removed_user_id: UUID


@dataclass(frozen=True)
class IdentityReset(WireMessage):
    """A member has rejoined the MLS group."""

    wire = "IdentityResetEvent"

    group_id: UUID
    user_id: UUID


@dataclass(frozen=True)
class InviteReceived(WireMessage):
    """The user is invited."""

    wire = "InviteReceivedEvent"

    invite_id: UUID
    group_id: UUID
    group_name: str
    group_alias: str
    inviter_id: UUID


@dataclass(frozen=True)
class InviteDeclined(WireMessage):
    """An invite was declined, cancelled or withdrawn, has expired, or the invitee's account was deleted."""

    wire = "InviteDeclinedEvent"

    group_id: UUID
    declined_user_id: UUID


@dataclass(frozen=True)
class InviteCancelled(WireMessage):
    """The user's invite was cancelled."""

    wire = "InviteCancelledEvent"

    group_id: UUID


@dataclass(frozen=True)
class GroupDeleted(WireMessage):
    """The group was deleted."""

    wire = "GroupDeletedEvent"

    group_id: UUID


@dataclass(frozen=True)
class MessageRedacted(WireMessage):
    """A message was redacted for the user: its timer ended, or it was taken back. Clients must delete it."""

    wire = "MessageRedactedEvent"

    group_id: UUID
    sequence_num: int


Event = (
    NewMessage
    | GroupUpdate
    | WelcomeWaits
    | MemberRemoved
    | IdentityReset
    | InviteReceived
    | InviteDeclined
    | InviteCancelled
    | GroupDeleted
    | MessageRedacted
)

EVENTS: dict[str, type[Event]] = {
    "new_message": NewMessage,
    "group_update": GroupUpdate,
    "welcome": WelcomeWaits,
    "member_removed": MemberRemoved,
    "identity_reset": IdentityReset,
    "invite_received": InviteReceived,
    "invite_declined": InviteDeclined,
    "invite_cancelled": InviteCancelled,
    "group_deleted": GroupDeleted,
    "message_redacted": MessageRedacted,
}
"""The events by their names on a stream."""
