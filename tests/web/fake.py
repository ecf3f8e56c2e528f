"""The browser chat's page with a fake engine, which shows any view without a server."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

from aiohttp import web
from aiohttp.test_utils import TestServer

from conclave.web import files
from tests.support.browser import Tab
from tests.support.server import PATIENCE

ENGINE = Path(__file__).with_name("fake_engine.js").read_text(encoding="utf-8")
SELF, BOB, CAROL = (str(UUID(int=number)) for number in (1, 2, 3))
BOOKS, DIRECT, EMPTY = (str(UUID(int=number)) for number in (11, 12, 13))
FINGERPRINT = "0123456789abcdef" * 4
FAULT = {"kind": "unspecified", "text": "the server does not answer", "fields": {}}


def account(**more: Any) -> dict[str, Any]:
    return {"userId": SELF, "username": "alice", "alias": "", "fingerprint": FINGERPRINT, **more}


def member(user_id: str, username: str, **more: Any) -> dict[str, Any]:
    key = {"fingerprint": FINGERPRINT, "trust": "unknown", "former": "", "wasVerified": False}
    role = "admin" if user_id == SELF else "member"
    return {
        "userId": user_id,
        "username": username,
        "alias": "",
        "role": role,
        "isSelf": user_id == SELF,
        "key": key,
        **more,
    }


def group(group_id: str, title: str, **more: Any) -> dict[str, Any]:
    return {
        "groupId": group_id,
        "name": "group",
        "title": title,
        "direct": None,
        "role": "admin",
        "visibility": "private",
        "unread": 0,
        "mentions": 0,
        "newestAt": int(time.time()),
        "waiting": 0,
        "members": [member(SELF, "alice"), member(BOB, "bob"), member(CAROL, "carol", alias="Carol C.")],
        "lifetime": {"effective": 3600, "group": 3600, "server": -1, "isHeld": False},
        "encryption": {"status": "encrypted", "changed": [], "strangers": [], "verified": 1},
        **more,
    }


def message(number: int, text: str | None, **more: Any) -> dict[str, Any]:
    return {
        "number": number,
        "senderId": BOB,
        "sender": "bob",
        "isOwn": False,
        "text": text,
        "goneAt": None,
        "createdAt": int(time.time()) - 60,
        "selfDestructSeconds": 0,
        "isUnread": False,
        "isMention": False,
        "omitted": 0,
        **more,
    }


def own(number: int, text: str, **more: Any) -> dict[str, Any]:
    return message(number, text, senderId=SELF, sender="alice", isOwn=True, **more)


def conversation(**more: Any) -> dict[str, Any]:
    return {
        "unreadFrom": None,
        "around": None,
        "sending": [],
        "notices": [],
        "draft": "",
        "isComplete": True,
        **more,
    }


def scenario(
    groups: list[dict[str, Any]],
    messages: dict[str, list[dict[str, Any]]],
    conversations: dict[str, dict[str, Any]] | None = None,
    answers: dict[str, Any] | None = None,
    **view: Any,
) -> dict[str, Any]:
    """Return the input of the fake engine. ``answers``: by command; one with ``fault`` fails."""
    return {
        "view": {
            "phase": "in",
            "fault": "",
            "account": account(),
            "clockOffset": 0,
            "groups": groups,
            "invites": [],
            "connection": {"state": "online", "why": "", "retryAt": 0},
            "conversation": None,
            **view,
        },
        "messages": messages,
        "conversations": {**{each["groupId"]: conversation() for each in groups}, **(conversations or {})},
        "answers": answers or {},
        "message": message(0, ""),
    }


@contextlib.asynccontextmanager
async def serving(shown: dict[str, Any]) -> AsyncIterator[str]:
    """Serve the page as the server does, with the fake engine in place of the Worker. Yields the URL."""

    async def answer(request: web.Request) -> web.Response:
        name = request.path.lstrip("/") or files.PAGE
        if name not in files.file_names(files.STATIC):
            raise web.HTTPNotFound
        file = files.load(files.STATIC / name, "Authorization")
        body = b"".join(file.plain)
        if name.startswith("worker-"):
            body = f"const SCENARIO = {json.dumps(shown)};\n{ENGINE}".encode()
        headers = {**files.headers(name), "Content-Type": file.media_type, "X-Content-Type-Options": "nosniff"}
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_get("/{name:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


_WAITS = "document.querySelector('.entry [role=status]')?.textContent"


async def opened(tab: Tab, url: str, group_id: str | None = None) -> None:
    """Open the page, and a group if one is given."""
    await tab.do("Emulation.setFocusEmulationEnabled", enabled=True)
    await tab.open(url)
    await true(tab, f"!!document.querySelector('.chat, .entry form') || ({_WAITS})?.startsWith('Loading') === false")
    if group_id:
        await tab.run("""
            globalThis.channel ??= new BroadcastChannel("fake");
            globalThis.asked = () => new Promise((done) => {
              channel.onmessage = ({ data }) => data.asked && done(data.asked);
              channel.postMessage({ log: true });
            });
        """)
        number = [str(UUID(int=each)) for each in (11, 12, 13)].index(group_id)
        await tab.run(f"document.querySelectorAll('.groups button')[{number}].click()")
        await seen(tab, ".composer")


async def seen(tab: Tab, selector: str, text: str = "") -> None:
    """Wait until an element with this text is on the page."""
    script = f"[...document.querySelectorAll({selector!r})].some((each) => each.textContent.includes({text!r}))"
    await true(tab, script)


async def true(tab: Tab, script: str) -> None:
    """Wait until a script returns a true value."""
    async with asyncio.timeout(PATIENCE / 3):
        while not await tab.run(script):
            await asyncio.sleep(0.05)


async def asked(tab: Tab, command: str) -> list[Any]:
    """Return the arguments of all calls of a command."""
    return [args for name, args in await tab.run("asked()") if name == command]


async def press(tab: Tab, key: str, modifiers: int = 0) -> None:
    """Press a key. ``modifiers``: 1 Alt, 2 Ctrl, 8 Shift."""
    codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, "End": 35, "Home": 36, " ": 32}
    text = {"Enter": "\r", " ": " "}.get(key, "")
    event = {
        "key": key,
        "code": "Space" if key == " " else key,
        "windowsVirtualKeyCode": codes[key],
        "modifiers": modifiers,
    }
    await tab.do("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
    await tab.do("Input.dispatchKeyEvent", type="keyUp", **event)


async def write(tab: Tab, text: str) -> None:
    """Type into the focused field."""
    await tab.do("Input.insertText", text=text)
