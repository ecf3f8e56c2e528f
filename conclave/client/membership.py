"""Creates, joins, leaves and changes groups, on the server and in the codec."""

import contextlib
from collections.abc import Callable
from uuid import UUID

from conclave.client.api import Client
from conclave.client.codec import Codec
from conclave.client.errors import ClientError, EncryptionError, ResourceError
from conclave.errors import ErrorCode


class MembershipManager:
    """Changes the members of groups, for a user with a codec. Every method raises ClientError.

    Nothing is repeated automatically: after a NoAnswerError check the groups and the invites first.
    """

    def __init__(self, client: Client, codec: Codec, on_change: Callable[[UUID], None] = lambda _: None) -> None:
        """``on_change``: called with each group to fetch, since the server sends no event for own commits."""
        self._client = client
        self._codec = codec
        self._on_change = on_change

    async def create(self, group_name: str, alias: str = "", *, public: bool = False) -> UUID:
        """Create a group, on the server and in the codec; return its id."""
        group_id = await self._client.create_group(group_name, alias)
        created = self._codec.create(group_id)
        await self._client.commit(group_id, group_info=created.group_info, mls_group_id=created.mls_group_id)
        if public:
            await self._client.update_group(group_id, visibility="public")
        return group_id

    async def invite(self, group_id: UUID, username: str) -> None:
        """Invite a user, with a commit and a Welcome. Raises ResourceError if the user has no key package."""
        user = await self._client.user(username)
        try:
            key_packages = await self._client.key_packages_for(group_id, [user.user_id])
        except ResourceError as error:
            if error.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise
            raise ResourceError(
                error.status,
                error.code,
                f"{username} has no keys yet, and cannot be invited: invite again after the first login of {username}"
                " in a client",
            ) from error
        [package] = [each.key_package_data for each in key_packages if each.user_id == user.user_id] or [b""]
        change = self._codec.add(group_id, user.user_id, package)
        await self._client.deposit_invite(group_id, user.user_id, change.commit, change.welcome, change.group_info)

    async def join(self, group_id: UUID) -> None:
        """Join a public group by an external commit. Raises ClientError.

        If the codec cannot join, the user leaves the group again. If another commit came first, the user stays a
        member, and the codec retries in the background.
        """
        try:
            group_info = await self._client.join(group_id)
            try:
                external_commit = self._codec.join(group_id, group_info)
            except EncryptionError:
                with contextlib.suppress(ClientError):  # the server undoes the join too, but later
                    await self.leave(group_id)
                raise
            try:
                await self._client.external_join(group_id, *external_commit)
            except ResourceError as error:
                if error.code != ErrorCode.RESOURCE_CONFLICT:
                    raise
                self._codec.drop_state(group_id)
        finally:
            # The answer may be lost, and the server sends no event for own changes.
            self._codec.schedule_check(group_id)
            self._on_change(group_id)

    async def remove(self, group_id: UUID, user_id: UUID, *, ban: bool = False) -> None:
        """Remove a member, or ban a user."""
        change = self._codec.remove(group_id, user_id)
        remove = self._client.ban if ban else self._client.remove
        try:
            await remove(group_id, user_id, change.commit, change.group_info)
        finally:
            self._on_change(group_id)

    async def leave(self, group_id: UUID) -> None:
        """Leave a group. ``Sync.leave`` also erases its local messages."""
        await self._client.leave(group_id)
        self._codec.forget(group_id)
