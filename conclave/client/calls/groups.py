"""Groups, their policies, and the MLS data that the server stores for them."""

from uuid import UUID

from conclave.client.calls.caller import ApiCalls
from conclave.client.names import check_name
from conclave.client.transport import MAX_BODIES_BYTES, Call, path
from conclave.wire.formats import Format
from conclave.wire.results import (
    GroupCreated,
    GroupDetails,
    GroupInfoStored,
    GroupList,
    GroupUpdated,
    PublicGroupInfo,
    PublicGroupList,
    RetentionConfiguration,
    RetentionInfo,
)
from conclave.wire.schemas import commits, groups as wire

GROUP_PAGE_SIZE = 100
"""Page size for the user's groups, each with all its members."""


class GroupCalls(ApiCalls):
    """Calls for groups."""

    async def create_group(self, group_name: str, alias: str = "") -> UUID:
        """Create a group with the user as its only member and admin; return its id."""
        call = Call(
            "POST", "/groups", wire.CreateGroupRequest, wire.CreateGroup(check_name("group_name", group_name), alias)
        )
        return (await self.transport.request(call, GroupCreated)).group_id

    async def groups(self) -> tuple[GroupDetails, ...]:
        """List the user's groups."""
        call = Call("GET", "/groups", repeatable=True, max_bytes=MAX_BODIES_BYTES)
        return await self._read_list(
            *(call, GroupList, lambda answer: answer.groups, lambda each: each.group_id), limit=GROUP_PAGE_SIZE
        )

    async def public_groups(self, pattern: str = "") -> tuple[PublicGroupInfo, ...]:
        """List public groups whose names contain ``pattern``."""
        call = Call("GET", "/groups/public", query={"pattern": pattern}, repeatable=True)
        return await self._read_list(call, PublicGroupList, lambda answer: answer.groups, lambda each: each.group_id)

    async def update_group(
        self,
        group_id: UUID,
        *,
        alias: str | None = None,
        group_name: str | None = None,
        visibility: str | None = None,
        expiry: int | None = None,
        min_lifetime: int | None = None,
        dry_run: bool = False,
    ) -> GroupUpdated:
        """Change a group; None leaves a value unchanged. Return how many messages the change hides.

        ``dry_run``: change nothing, and return how many messages the change would hide. ``expiry``: -1 inherit, 0
        delete-after-fetch, or seconds. ``min_lifetime``: -1 inherit, 0 no minimum, or seconds. ``visibility``:
        "private" or "public". In protobuf an empty alias leaves the alias unchanged.
        """
        body = wire.UpdateGroup(
            update_message_expiry=expiry is not None,
            update_min_lifetime=min_lifetime is not None,
            dry_run=dry_run,
            alias=alias,
            group_name=None if group_name is None else check_name("group_name", group_name),
            message_expiry_seconds=expiry,
            visibility=visibility,
            min_lifetime_seconds=min_lifetime,
        )
        call = Call("PATCH", path("groups", group_id), wire.UpdateGroupRequest, body, repeatable=True)
        return await self.transport.request(call, GroupUpdated)

    async def delete_group(self, group_id: UUID) -> None:
        """Delete a group with all its data."""
        await self.transport.send(Call("POST", path("groups", group_id, "delete")))

    async def retention(self, group_id: UUID, *, taken_back_after: int | None = None) -> RetentionInfo:
        """Return the retention policy of a group.

        ``taken_back_after``: list the first taken-back messages after this number; None: list the last ones.
        """
        query = {} if taken_back_after is None else {"taken_back_after": str(taken_back_after)}
        call = Call("GET", path("groups", group_id, "retention"), query=query, repeatable=True)
        return await self.transport.request(call, RetentionInfo)

    async def retention_configuration(self) -> RetentionConfiguration:
        """Return the operator's retention settings."""
        call = Call("GET", "/retention/configuration", repeatable=True)
        return await self.transport.request(call, RetentionConfiguration, written_in=Format.JSON)

    async def group_info(self, group_id: UUID) -> bytes:
        """Return the group info that a member has uploaded."""
        call = Call("GET", path("groups", group_id, "group-info"), repeatable=True)
        return (await self.transport.request(call, GroupInfoStored)).group_info

    async def commit(
        self, group_id: UUID, *, commit_message: bytes = b"", group_info: bytes = b"", mls_group_id: str = ""
    ) -> None:
        """Store a commit as a message, a group info, or the group's MLS id, or several. The request is not repeated."""
        body = commits.UploadCommit(commit_message, group_info, mls_group_id)
        await self.transport.send(Call("POST", path("groups", group_id, "commit"), commits.UploadCommitRequest, body))

    async def join(self, group_id: UUID) -> bytes:
        """Join a public group; return its group info, for an external commit."""
        return (
            await self.transport.request(Call("POST", path("groups", group_id, "join")), GroupInfoStored)
        ).group_info

    async def external_join(
        self, group_id: UUID, commit_message: bytes = b"", mls_group_id: str = "", group_info: bytes = b""
    ) -> None:
        """Store the user's external commit.

        ``group_info``: the group info of the epoch after the commit. If another commit came first, raises
        ResourceError (status 409), and nothing is stored.
        """
        body = commits.ExternalJoin(commit_message, mls_group_id, group_info)
        await self.transport.send(
            Call("POST", path("groups", group_id, "external-join"), commits.ExternalJoinRequest, body)
        )

    async def leave(self, group_id: UUID, commit_message: bytes = b"", group_info: bytes = b"") -> None:
        """Leave a group."""
        body = commits.LeaveGroup(commit_message, group_info)
        await self.transport.send(Call("POST", path("groups", group_id, "leave"), commits.LeaveGroupRequest, body))
