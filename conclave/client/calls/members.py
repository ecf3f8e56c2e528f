"""Roles, removals, bans."""

from uuid import UUID

from conclave.client.calls.caller import ApiCalls
from conclave.client.transport import Call, path
from conclave.wire.results import AdminList, BannedUserInfo, BannedUserList, MemberInfo
from conclave.wire.schemas import members as wire
from conclave.wire.schemas.base import RequestSchema


class MemberCalls(ApiCalls):
    """Calls of admins for members."""

    async def promote(self, group_id: UUID, user_id: UUID) -> None:
        """Make a member an admin."""
        await self._send_user_action(group_id, "promote", wire.PromoteMemberRequest, user_id)

    async def demote(self, group_id: UUID, user_id: UUID) -> None:
        """Make an admin a member."""
        await self._send_user_action(group_id, "demote", wire.DemoteMemberRequest, user_id)

    async def admins(self, group_id: UUID) -> tuple[MemberInfo, ...]:
        """List the admins of a group."""
        call = Call("GET", path("groups", group_id, "admins"), repeatable=True)
        return await self._read_list(call, AdminList, lambda answer: answer.admins, lambda each: each.user_id)

    async def remove(self, group_id: UUID, user_id: UUID, commit_message: bytes = b"", group_info: bytes = b"") -> None:
        """Remove a member."""
        body = wire.RemoveMember(commit_message, group_info, user_id.bytes)
        await self.transport.send(Call("POST", path("groups", group_id, "remove"), wire.RemoveMemberRequest, body))

    async def ban(self, group_id: UUID, user_id: UUID, commit_message: bytes = b"", group_info: bytes = b"") -> None:
        """Ban a user, who is also removed if a member. The request is repeated: a second ban changes nothing."""
        body = wire.RemoveMember(commit_message, group_info, user_id.bytes)
        call = Call("POST", path("groups", group_id, "ban"), wire.BanMemberRequest, body, repeatable=True)
        await self.transport.send(call)

    async def unban(self, group_id: UUID, user_id: UUID) -> None:
        """Lift a ban."""
        await self._send_user_action(group_id, "unban", wire.UnbanMemberRequest, user_id)

    async def banned(self, group_id: UUID) -> tuple[BannedUserInfo, ...]:
        """List the users banned from a group."""
        call = Call("GET", path("groups", group_id, "banned"), repeatable=True)
        return await self._read_list(call, BannedUserList, lambda answer: answer.users, lambda each: each.user_id)

    async def _send_user_action(self, group_id: UUID, action: str, schema: type[RequestSchema], user_id: UUID) -> None:
        body = wire.NamedUser(user_id.bytes)
        await self.transport.send(Call("POST", path("groups", group_id, action), schema, body))
