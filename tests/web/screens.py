"""Every screen of the page, and how to reach it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from tests.support.browser import Tab
from tests.web import fake
from tests.web.fake import BOB, BOOKS, CAROL, DIRECT, EMPTY, SELF

WORDS = ["heron", "book", "lake", "river", "stone", "tree", "moss", "cloud", "rain", "wind", "sun", "moon"]
FOR_EVER = {"effective": -1, "group": -1, "server": -1, "isHeld": False}


def conversation(now: int) -> list[dict[str, Any]]:
    """Return messages of every kind, in a group with a lifetime of an hour."""
    hour = 3600
    said = [
        fake.message(1, "Has everybody read the chapter about herons?", createdAt=now - 3000),
        fake.message(2, "I have", senderId=CAROL, sender="carol", createdAt=now - 2900),
        fake.message(3, "and it is at https://example.org/herons?page=2", senderId=CAROL, sender="carol"),
        fake.own(4, "> bob: Has everybody read the chapter about herons?\nNot yet. Tomorrow!", createdAt=now - 2000),
        fake.message(
            5, "@alice then bring the book on Friday, please, and the map", isMention=True, createdAt=now - 900
        ),
        fake.message(6, None, createdAt=now - 800),
        fake.own(7, "I will", createdAt=now - 700),
        fake.message(8, "Thanks! See you all on Friday at seven.", createdAt=now - 10, isUnread=True),
    ]
    said[2]["createdAt"] = now - 2890
    burning = fake.message(9, "The code of the door is 4711", createdAt=now - 5, selfDestructSeconds=60, isUnread=True)
    return [*({**each, "goneAt": each["createdAt"] + hour} for each in said), burning]


def everything(**view: Any) -> dict[str, Any]:
    """Return a scenario with content for every screen."""
    now = int(time.time())
    changed = {"fingerprint": "f" * 64, "trust": "changed", "former": fake.FINGERPRINT, "wasVerified": True}
    warned = {
        "status": "encrypted",
        "changed": [BOB],
        "verified": 0,
        "strangers": [{"userId": str(UUID(int=4)), "username": "dave"}],
    }
    groups = [
        fake.group(BOOKS, "Book club", unread=2, mentions=1),
        fake.group(
            *(DIRECT, "bob"),
            direct=BOB,
            lifetime=FOR_EVER,
            members=[fake.member(SELF, "alice"), fake.member(BOB, "bob", key=changed)],
            encryption=warned,
            waiting=1,
        ),
        fake.group(EMPTY, "Garden, 2026", members=[fake.member(SELF, "alice")], unread=14),
    ]
    notices = [
        {"at": now - 1500, "kind": "info", "text": "bob changed the lifetime: messages are deleted after 1 hour."},
        {"at": now - 1000, "kind": "warning", "text": "dave: This user is not a member but can read messages."},
        {
            "at": now - 950,
            "kind": "danger",
            "text": "bob: This member added you, but the server named another inviter.",
        },
    ]
    sending = [
        {"sendId": str(UUID(int=31)), "text": "on my way", "selfDestructSeconds": 0, "state": "held", "why": ""},
        {"sendId": str(UUID(int=32)), "text": "late", "selfDestructSeconds": 0, "state": "failed", "why": "too large"},
    ]
    invite = {"inviteId": str(UUID(int=21)), "groupId": str(UUID(int=22)), "name": "poetry", "title": "Poetry evenings"}
    public = {"groupId": str(UUID(int=7)), "name": "chess", "title": "Chess", "memberCount": 12}
    answers = {
        "comparisonCode": {"digits": ["12345", "67890", "11111", "22222", "33333", "44444"], "words": WORDS},
        "previewExpiry": {"messagesExpiring": 3, "oldestExpiring": now - 3000, "effective": 3600},
        "findPublic": [public],
        "administration": {
            "invites": [{"userId": str(UUID(int=5)), "username": "erin", "createdAt": now}],
            "banned": [{"userId": str(UUID(int=6)), "username": "mallory", "bannedAt": now}],
        },
    }
    return fake.scenario(
        groups,
        {BOOKS: conversation(now), DIRECT: [fake.message(1, "hello")], EMPTY: []},
        {
            BOOKS: fake.conversation(unreadFrom=8, notices=notices[:1]),
            DIRECT: fake.conversation(notices=notices, sending=sending),
        },
        answers,
        **{"invites": [{**invite, "inviter": "dave", "createdAt": now}], **view},
    )


_TOP = "[...document.querySelectorAll('dialog')].at(-1)"

_ABOUT = ("About this conversation", "Members")
_MORE = ("More actions", "Take back")
_ACCOUNT = ("Account", "Notifications")

_DIALOGS = (
    (("Search in this", "Words"),),
    (("New conversation", "Chess"),),
    (_ABOUT,),
    (_ABOUT, ("Change", "would be deleted at once")),
    (_ABOUT, ("bob", "You have not verified this key")),
    (_ABOUT, ("bob", "You have not verified this key"), ("Compare keys", "12345")),
    (_ABOUT, ("Leave", "erased from this device")),
    (_MORE,),
    (_MORE, ("Take back", "is deleted for everyone")),
    (_ACCOUNT,),
    (_ACCOUNT, ("Log out", "This erases")),
    (_ACCOUNT, ("Delete account", "Your password")),
)
"""Stacks of dialogs: for each the button that opens it, and a text in it."""


async def screens(tab: Tab) -> AsyncIterator[str]:
    """Show one screen after the other, and yield the name of each."""
    async with fake.serving(everything(phase="out")) as url:
        await fake.opened(tab, url)
        yield "login"
        await tab.run("document.querySelector('button.link').click()")
        await fake.seen(tab, "button", "Create account")
        yield "register"
    offline = {"state": "offline", "why": "the server does not answer", "retryAt": int(time.time() + 60) * 1000}
    alone: dict[str, dict[str, Any]] = {
        "taken": {"phase": "taken"},
        "failed": {"phase": "failed", "fault": "The disk is full."},
        "list": {"connection": offline},
    }
    for name, view in alone.items():
        async with fake.serving(everything(**view)) as url:
            await fake.opened(tab, url)
            yield name
    async with fake.serving(everything()) as url:
        for group_id, name in ((EMPTY, "empty"), (DIRECT, "warned"), (BOOKS, "conversation")):
            await fake.opened(tab, url, group_id)
            yield name
        async for name in _dialogs(tab):
            yield name


async def _dialogs(tab: Tab) -> AsyncIterator[str]:
    """Show all dialogs above the open conversation."""
    for path in _DIALOGS:
        for button, text in path:
            selector = f"[...({_TOP} ?? document).querySelectorAll('button')]"
            words = "(each.ariaLabel ?? '') + each.textContent"
            await tab.run(f"{selector}.filter((each) => ({words}).includes({button!r})).at(-1).click()")
            await fake.seen(tab, "dialog", text)
        yield re.sub(r"\W+", "-", path[-1][0].strip().lower())
        while await tab.run("!!document.querySelector('dialog')"):
            await fake.press(tab, "Escape")
            await asyncio.sleep(0.05)
