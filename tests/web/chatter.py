"""Engines of the browser chat in Node, with a real server."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.support.client import PASSWORD
from tests.support.server import PATIENCE
from tests.web.node import NODE


class FaultError(Exception):
    """A command failed. ``fault``: as the page receives it."""

    def __init__(self, fault: dict[str, Any], stack: str) -> None:
        super().__init__(f"{fault['kind']}: {fault['text']}\n{stack}")
        self.fault = fault


class Chatters:
    """A Node process with engines."""

    def __init__(self, program: Path, url: str, folder: Path) -> None:
        self._command = NODE or "node", program, url, folder
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = count(1)

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, limit=1 << 26)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"])
            if answer["ok"]:
                waiting.set_result(answer["value"])
            else:
                waiting.set_exception(FaultError(answer["fault"], answer["stack"]))
        for each in self._waiting.values():
            if not each.done():
                each.set_exception(RuntimeError("the process has ended"))

    async def ask(self, op: str, name: str = "", **fields: Any) -> Any:
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'id': number, 'op': op, 'name': name, **fields})}\n".encode())
        await self._process.stdin.drain()
        return await self._waiting[number]

    async def new(self, name: str, *, register: bool = True) -> "Chatter":
        """Start an engine, with a new account."""
        made = Chatter(self, name)
        await self.ask("start", name)
        if register:
            await made("register", name, PASSWORD)
            await made.until(lambda view: view["connection"]["state"] == "online")
        return made


class Chatter:
    """An engine and its user."""

    def __init__(self, process: Chatters, name: str) -> None:
        self._process, self.name = process, name

    async def __call__(self, command: str, *args: Any) -> Any:
        return await self._process.ask("command", self.name, command=command, args=args)

    async def view(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._process.ask("view", self.name)
        return found

    async def restart(self) -> None:
        await self._process.ask("restart", self.name)

    async def until(self, condition: Callable[[dict[str, Any]], Any], patience: float = PATIENCE / 3) -> Any:
        """Wait until the condition holds for the view, and return its result."""
        view: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(patience):
                while not (view := await self.view()) or not (found := condition(view)):
                    await asyncio.sleep(0.05)
                return found
        except TimeoutError:
            raise AssertionError(f"{self.name}: {json.dumps(view, indent=1)}") from None

    async def group(self, group_id: str) -> dict[str, Any]:
        """Wait until a group is listed and encrypted, and return it."""
        found: dict[str, Any] = await self.until(lambda view: group_in(view, group_id))
        return found

    async def is_with(self, others: int) -> None:
        """Wait until this many other members have keys in the only group."""
        await self.until(
            lambda view: sum(each["key"] is not None for each in view["groups"][0]["members"]) == others + 1
        )

    async def invited(self) -> str:
        """Wait for an invite, accept it, and return the id of the group."""
        [invite] = await self.until(lambda view: view["invites"])
        await self("accept", invite["inviteId"])
        await self.group(invite["groupId"])
        return str(invite["groupId"])

    async def receives(self, text: str) -> dict[str, Any]:
        """Wait for a message in the open conversation, and return it."""
        found: dict[str, Any] = await self.until(
            lambda view: next((each for each in messages(view) if each["text"] == text), None)
        )
        return found

    async def texts(self) -> list[str | None]:
        return [each["text"] for each in messages(await self.view())]


def group_in(view: dict[str, Any], group_id: str) -> dict[str, Any] | None:
    found = next((each for each in view["groups"] if each["groupId"] == group_id), None)
    return found if found and found["encryption"]["status"] == "encrypted" else None


def messages(view: dict[str, Any]) -> list[dict[str, Any]]:
    conversation = view["conversation"]
    found: list[dict[str, Any]] = conversation["messages"] if conversation else []
    return found
