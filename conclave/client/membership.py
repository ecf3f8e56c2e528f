"""Coming into groups and leaving them, with what a codec has to say to it."""

from uuid import UUID

from conclave.client.api import Client
from conclave.client.codec import Codec


class Membership:
    """What changes who is in a group, for a user with a codec. Every method raises ClientError.

    None is repeated by itself: after a NoAnswerError look at the groups and the invites first.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client = client
        self._codec = codec

    async def create(self, group_name: str, alias: str = "", *, public: bool = False) -> UUID:
        """Create a group, and begin it in the codec."""
        group_id = await self._client.create_group(group_name, alias)
        await self._client.commit(group_id, group_info=self._codec.begin(group_id))
        if public:
            await self._client.update_group(group_id, visibility="public")
        return group_id

    async def invite(self, group_id: UUID, username: str) -> None:
        """Invite somebody: take a key package, and deposit what it needs."""
        user = await self._client.user(username)
        taken = await self._client.key_packages_for(group_id, [user.user_id])
        change = self._codec.add(group_id, [each.key_package_data for each in taken])
        await self._client.deposit_invite(group_id, user.user_id, change.commit, change.welcome, change.group_info)

    async def join(self, group_id: UUID) -> None:
        """Join a public group, and tell its members by an external commit."""
        group_info = await self._client.join(group_id)
        await self._client.external_join(group_id, self._codec.join(group_id, group_info))

    async def remove(self, group_id: UUID, user_id: UUID, *, ban: bool = False) -> None:
        """Remove somebody, or ban somebody."""
        change = self._codec.remove(group_id, user_id)
        remove = self._client.ban if ban else self._client.remove
        await remove(group_id, user_id, change.commit, change.group_info)

    async def leave(self, group_id: UUID) -> None:
        """Leave a group. ``Sync.leave`` erases what is here of it too."""
        await self._client.leave(group_id)
        self._codec.forget(group_id)
