"""Invites, welcomes, key packages."""

from collections.abc import Sequence
from uuid import UUID

from conclave.client.calls.caller import ApiCalls
from conclave.client.transport import MAX_BODIES_BYTES, Call, path
from conclave.wire.results import (
    InviteInfo,
    InviteList,
    KeyPackageTaken,
    MemberKeyPackage,
    MemberKeyPackages,
    WelcomeInfo,
    WelcomeList,
)
from conclave.wire.schemas import invites as wire, key_packages

WELCOME_PAGE_SIZE = 32
"""Page size for Welcomes: each may have 1 MiB, a third more in JSON."""


class InviteCalls(ApiCalls):
    """Calls for invites, Welcomes and key packages."""

    async def upload_key_packages(
        self, regular: Sequence[bytes], last_resort: bytes | None = None, fingerprint: str = ""
    ) -> None:
        """Upload key packages, all or none. The request is not repeated: no package may be handed out twice."""
        entries = [key_packages.UploadedKeyPackage(each, is_last_resort=False) for each in regular]
        if last_resort is not None:
            entries.append(key_packages.UploadedKeyPackage(last_resort, is_last_resort=True))
        body = key_packages.UploadKeyPackages(entries, fingerprint)
        await self.transport.send(Call("POST", "/key-packages", key_packages.UploadKeyPackageRequest, body))

    async def take_key_package(self, user_id: UUID) -> bytes:
        """Take a key package of a user. The request is not repeated: each package is handed out once."""
        return (
            await self.transport.request(Call("GET", path("key-packages", user_id)), KeyPackageTaken)
        ).key_package_data

    async def key_packages_for(self, group_id: UUID, user_ids: Sequence[UUID]) -> tuple[MemberKeyPackage, ...]:
        """Take a key package of each user to invite, all or none. The request is not repeated."""
        body = key_packages.InviteToGroup([each.bytes for each in user_ids])
        call = Call("POST", path("groups", group_id, "invite"), key_packages.InviteToGroupRequest, body)
        return (await self.transport.request(call, MemberKeyPackages)).member_key_packages

    async def deposit_invite(
        self, group_id: UUID, invitee_id: UUID, commit_message: bytes, welcome_message: bytes, group_info: bytes
    ) -> None:
        """Invite a user. The server sends the given messages when the invite is accepted."""
        body = wire.EscrowInvite(invitee_id.bytes, commit_message, welcome_message, group_info)
        await self.transport.send(
            Call("POST", path("groups", group_id, "escrow-invite"), wire.EscrowInviteRequest, body)
        )

    async def invites(self) -> tuple[InviteInfo, ...]:
        """List the user's invites."""
        return await self._invites("/invites")

    async def invites_of(self, group_id: UUID) -> tuple[InviteInfo, ...]:
        """List a group's invites."""
        return await self._invites(path("groups", group_id, "invites"))

    async def _invites(self, list_path: str) -> tuple[InviteInfo, ...]:
        call = Call("GET", list_path, repeatable=True)
        return await self._read_list(call, InviteList, lambda answer: answer.invites, lambda each: each.invite_id)

    async def cancel_invite(self, group_id: UUID, invitee_id: UUID) -> None:
        """Cancel an invite."""
        body = wire.CancelInvite(invitee_id.bytes)
        await self.transport.send(
            Call("POST", path("groups", group_id, "cancel-invite"), wire.CancelInviteRequest, body)
        )

    async def accept_invite(self, invite_id: UUID) -> None:
        """Accept an invite. The request is not repeated: if no answer arrives, check the groups."""
        await self.transport.send(Call("POST", path("invites", invite_id, "accept")))

    async def decline_invite(self, invite_id: UUID) -> None:
        """Decline an invite."""
        await self.transport.send(Call("POST", path("invites", invite_id, "decline")))

    async def welcomes(self) -> tuple[WelcomeInfo, ...]:
        """List the user's Welcomes."""
        call = Call("GET", "/welcomes", repeatable=True, max_bytes=MAX_BODIES_BYTES)
        return await self._read_list(
            *(call, WelcomeList, lambda answer: answer.welcomes, lambda each: each.welcome_id), limit=WELCOME_PAGE_SIZE
        )

    async def accept_welcome(self, welcome_id: UUID) -> None:
        """Acknowledge a Welcome: the server deletes it."""
        await self.transport.send(Call("POST", path("welcomes", welcome_id, "accept")))
