"""Reads and sets the retention policies of the user's groups, and announces changes."""

from collections.abc import Awaitable, Callable
from itertools import count
from uuid import UUID

from conclave.client.api import Client
from conclave.client.chat import formatting
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.errors import GroupError
from conclave.wire.results import GroupUpdated, RetentionConfiguration, RetentionInfo


class RetentionSettings:
    """The groups' policies, as the server reports them."""

    def __init__(
        self,
        client: Client,
        rooms: Rooms,
        now: Callable[[], int],
        name: Callable[[UUID], Awaitable[str]],
        changed: Callable[[Room], None],
    ) -> None:
        """``name``: returns a user's name. ``changed``: called after a group's policy has changed."""
        self._client = client
        self._rooms = rooms
        self._now = now
        self._name = name
        self._changed = changed
        self._reads = count(1)

    async def change(self, group_id: UUID, expiry: int, *, dry_run: bool) -> GroupUpdated:
        """Set a group's expiry; with ``dry_run`` only return what that would hide. Raises ClientError."""
        done = await self._client.update_group(group_id, expiry=expiry, dry_run=dry_run)
        if not dry_run:
            await self.read(group_id)
        return done

    async def effective(self, group_id: UUID, expiry: int) -> int:
        """Return the effective expiry that a group's setting would have. Raises ClientError."""
        server = (await self._client.retention(group_id)).server_retention_seconds
        return effective_expiry(group_id, expiry, server, await self._client.retention_configuration())

    async def read(self, group_id: UUID) -> None:
        """Read a group's policy, and announce a change in the group. Raises ClientError."""
        number = next(self._reads)
        try:
            found = await self._client.retention(group_id)
        except GroupError:
            return  # no longer a member: an event follows
        room = self._rooms.all.get(group_id)
        if room is None or number < room.retention_read:
            return  # a late answer must not overwrite a newer one
        room.retention_read = number
        if room.retention != found:
            old, room.retention = room.retention, found
            if old and old.effective_expiry_seconds != found.effective_expiry_seconds:
                await self._announce(room, old, found)
            room.hidden_count = 0
            self._changed(room)

    async def _announce(self, room: Room, old: RetentionInfo, found: RetentionInfo) -> None:
        """Add a notice about the new policy to the group."""
        now, admin = self._now(), found.expiry_set_by
        is_own = admin == self._rooms.user_id
        who = "you" if is_own else await self._name(admin) if admin else "an admin"
        lifetime = found.effective_expiry_seconds
        due = [each for each in room.messages.values() if 0 < lifetime < now - each.created_at]
        hidden, room.hidden_count = room.hidden_count + len(due), 0
        room.notice(change_notice(old, found, who, hidden), now)


def effective_expiry(group_id: UUID, expiry: int, server: int, configured: RetentionConfiguration) -> int:
    """Return the effective expiry that ``expiry`` would have as a group's own setting.

    ``expiry`` and ``server`` (the server's message_retention): -1, 0 or seconds. ``configured``: the operator's
    policies and limits in milliseconds. A policy for this group takes precedence; one for all groups without their own
    includes the server's. The rule is that of docs/retention.md, "The effective policy".
    """
    if (own := configured.policies.get(str(group_id))) is not None:
        return _seconds(own)
    if expiry == formatting.KEEP:
        return _seconds(configured.policies.get("*", {}))
    if formatting.AFTER_FETCH in (server, expiry):
        return formatting.AFTER_FETCH
    limit = configured.limits.get("max_lifetime", {})
    within = max(expiry, limit.get("min", 0) // 1000)
    within = min(within, limit["max"] // 1000) if "max" in limit else within
    return within if server == formatting.KEEP else min(within, server)


def change_notice(old: RetentionInfo, new: RetentionInfo, admin: str, hidden: int) -> str:
    """Describe a change of policy: the new one, who made the change, and how many messages it hid.

    ``admin``: who has set the group's own expiry; it is unchanged if the operator made the change.
    """
    who = admin if new.group_expiry_seconds != old.group_expiry_seconds else "the operator"
    text = f"{who} changed the expiry: messages are {formatting.policy(new.effective_expiry_seconds)}"
    return f"{text}; {formatting.count(hidden, 'message')} expired" if hidden else text


def _seconds(policy: dict[str, int]) -> int:
    return policy["max_lifetime"] // 1000 if "max_lifetime" in policy else formatting.KEEP
