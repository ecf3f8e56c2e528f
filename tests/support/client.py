"""A typed client of the server, for tests and benchmarks."""

import base64
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pytest
from aiohttp import ClientSession

API = "/api/v1"
PASSWORD = "correct horse"
PACKAGE = b"\x00\x01\x00\x05 a key package"


class RefusedError(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.headers = headers
        self.code: int = body["error_code"]
        self.body = body


@dataclass
class Message:
    sequence_num: int
    sender_id: str
    body: bytes
    created_at: int
    self_destruct_seconds: int = 0
    redacted: bool = False


class Client:
    """One user's session."""

    def __init__(self, http: ClientSession, url: str, token: str = "", user_id: str = "") -> None:
        self.http = http
        self.url = url.rstrip("/")
        self.token = token
        self.user_id = user_id

    @classmethod
    async def register(cls, http: ClientSession, url: str, username: str) -> Self:
        client = cls(http, url)
        client.user_id = (await client.post("/register", username=username, password=PASSWORD))["user_id"]
        await client.login(username)
        return client

    async def login(self, username: str) -> None:
        self.token = (await self.post("/login", username=username, password=PASSWORD))["token"]

    async def another(self, username: str) -> Self:
        """Log the same user in once more."""
        client = type(self)(self.http, self.url, user_id=self.user_id)
        await client.login(username)
        return client

    async def call(self, method: str, path: str, *, json: Any = None, **query: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with self.http.request(
            method, self.url + API + path, json=json, params=query or None, headers=headers
        ) as response:
            body = await response.json() if response.status != 204 else {}
            if response.status >= 400:
                raise RefusedError(response.status, body, response.headers)
            return body

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        return await self.call("GET", path, **query)

    def raw_get(self, path: str) -> bytes:
        """Return the bytes of a GET, for a test that writes to a socket itself."""
        return f"GET {API}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode()

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        return await self.call("POST", path, json=body)

    async def create_group(self, name: str, *, public: bool = True, expiry: int | None = None) -> str:
        """Create a group that others can join."""
        group: str = (await self.post("/groups", group_name=name))["group_id"]
        await self.post(f"/groups/{group}/commit", group_info=encode(b"group info"))
        if public:
            await self.patch(group, visibility="public")
        if expiry is not None:
            await self.set_expiry(group, expiry)
        return group

    async def patch(self, group: str, **changes: Any) -> None:
        await self.call("PATCH", f"/groups/{group}", json=changes)

    async def set_expiry(self, group: str, seconds: int) -> None:
        await self.patch(group, message_expiry_seconds=seconds, update_message_expiry=True)

    async def join(self, group: str) -> None:
        """Join a public group as clients do, with an external commit; here without a message."""
        await self.begin_join(group)
        await self.post(f"/groups/{group}/external-join")

    async def begin_join(self, group: str) -> None:
        """Join without the external commit: whoever sends none within a minute is no member."""
        await self.post(f"/groups/{group}/join")

    async def leave(self, group: str) -> None:
        await self.post(f"/groups/{group}/leave")

    async def act(self, action: str, group: str, user: "Client", **more: Any) -> None:
        """Do what an admin can do to somebody: promote, demote, remove, ban or unban."""
        await self.post(f"/groups/{group}/{action}", user_id=user.user_id, **more)

    async def invite(self, group: str, invitee: "Client", body: bytes = b"add") -> str:
        """Deposit an invite and return its id. Commit, welcome and group info are ``body`` and a word more."""
        carried = {
            "commit_message": encode(body + b" commit"),
            "welcome_message": encode(body + b" welcome"),
            "group_info": encode(body + b" info"),
        }
        await self.post(f"/groups/{group}/escrow-invite", invitee_id=invitee.user_id, **carried)
        pending = (await self.get(f"/groups/{group}/invites"))["invites"]
        return next(str(each["invite_id"]) for each in pending if each["invitee_id"] == invitee.user_id)

    async def bring(self, invitee: "Client", group: str, body: bytes = b"add") -> None:
        """Invite somebody who accepts at once."""
        await invitee.accept(await self.invite(group, invitee, body))

    async def accept(self, invite: str) -> None:
        await self.post(f"/invites/{invite}/accept")

    async def decline(self, invite: str) -> None:
        await self.post(f"/invites/{invite}/decline")

    async def invited_to(self) -> list[str]:
        """Return the groups whose invites wait for the user."""
        return [each["group_id"] for each in (await self.get("/invites"))["invites"]]

    async def welcomes(self) -> list[bytes]:
        return [base64.b64decode(each["welcome_message"]) for each in (await self.get("/welcomes"))["welcomes"]]

    async def roles(self, group: str) -> dict[str, str]:
        """Return the members of a group and their roles, the longest-standing first."""
        own = (await self.get("/groups"))["groups"]
        members = [member for each in own if each["group_id"] == group for member in each["members"]]
        return {each["username"]: each["role"] for each in members}

    async def group_info(self, group: str) -> bytes:
        return base64.b64decode((await self.get(f"/groups/{group}/group-info"))["group_info"])

    async def upload(self, *packages: bytes, last_resort: bytes | None = None) -> None:
        """Upload key packages."""
        entries = [{"data": encode(package)} for package in packages]
        last = [] if last_resort is None else [{"data": encode(last_resort), "is_last_resort": True}]
        await self.post("/key-packages", entries=entries + last)

    async def take(self, user: "Client") -> bytes:
        """Fetch a key package of somebody."""
        return base64.b64decode((await self.get(f"/key-packages/{user.user_id}"))["key_package_data"])

    async def send(self, group: str, body: bytes = b"hello", seconds: int = 0, send_id: str = "") -> int:
        """Send a message, which destroys itself ``seconds`` after it was read if they are given."""
        more: dict[str, Any] = {"self_destruct_seconds": seconds} if seconds else {}
        if send_id:
            more["send_id"] = send_id
        return int((await self.post(f"/groups/{group}/messages", mls_message=encode(body), **more))["sequence_num"])

    async def take_back(self, group: str, number: int, *, dry_run: bool = False) -> None:
        query = "?dry_run=true" if dry_run else ""
        assert await self.call("DELETE", f"/groups/{group}/messages/{number}{query}") == {}

    async def read(self, group: str, up_to: int) -> None:
        await self.post(f"/groups/{group}/read", sequence_num=up_to)

    async def fetch(
        self, group: str, after: int = 0, limit: int | None = None, *, include_redacted: bool = False
    ) -> list[Message]:
        query = {"after": after} | ({} if limit is None else {"limit": limit})
        page = await self.get(
            f"/groups/{group}/messages", **query, **({"include_redacted": "true"} if include_redacted else {})
        )
        return [
            Message(
                each["sequence_num"],
                each["sender_id"],
                base64.b64decode(each["mls_message"]),
                each["created_at"],
                each["self_destruct_seconds"],
                each["redacted"],
            )
            for each in page["messages"]
        ]

    async def fetch_all(self, group: str) -> list[Message]:
        """Fetch page by page, until one is empty."""
        found: list[Message] = []
        while page := await self.fetch(group, found[-1].sequence_num if found else 0, 500):
            found += page
        return found

    async def numbers(self, group: str, after: int = 0) -> list[int]:
        """Fetch, and return the sequence numbers only."""
        return [each.sequence_num for each in await self.fetch(group, after, 500)]


def encode(body: bytes) -> str:
    return base64.b64encode(body).decode()


async def expect(request: Awaitable[Any], status: int, code: int) -> dict[str, Any]:
    """Await ``request``, check how it is refused, and return the error response."""
    with pytest.raises(RefusedError) as refused:
        await request
    assert (refused.value.status, refused.value.code) == (status, code), refused.value
    return refused.value.body
