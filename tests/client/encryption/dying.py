"""A client that dies at the n-th step of what it does: steps are before and after each request and each write.

``python -m tests.client.encryption.dying SESSION FOLDER NAME STEP ACTION [GROUP [WHO]]``

It prints "acknowledged" once the action has returned.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from conclave.client import Client, ClientError, History, MlsCodec, Sync
from conclave.client.events import EncryptionChanged, MessageArrived
from conclave.client.session import LoginSession
from conclave.wire.events import InviteReceived
from tests.client.encryption.failpoints import Failpoints

SETTLES = 3.0
"""So long it goes on after its action, unless it has died."""


def kill() -> None:
    """End as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


async def act(sync: Sync, action: str, group: UUID | None, who: str) -> None:
    membership = sync.membership
    match action, group:
        case "join", UUID():
            await membership.join(group)
        case "invite", UUID():
            await membership.invite(group, who)
        case "remove", UUID():
            await membership.remove(group, UUID(who))
        case "send", UUID():
            await sync.send(group, who)
        case "renew", UUID():
            change = sync.codec.commit(group)  # type: ignore[attr-defined]
            await sync.client.commit(group, commit_message=change.commit, group_info=change.group_info)
            sync.request_fetch(group)
        case "reset", _:
            await sync.reset()


async def main(session_path: str, folder: str, name: str, step: str, action: str, *rest: str) -> None:
    session = LoginSession.load(Path(session_path))
    assert session
    group, who = UUID(rest[0]) if rest else None, rest[1] if len(rest) > 1 else ""
    keys, past = Path(folder) / f"{name}.keys", Path(folder) / f"{name}.history"
    with History(past) as history, MlsCodec(keys, session.user_id) as codec:
        async with Client(session.url) as client:
            client.resume(session)
            Failpoints(kill, int(step)).arm(client, codec, history)
            async with Sync(client, history, codec) as sync:
                listening = asyncio.create_task(listen(sync))
                await asyncio.sleep(0.5)
                with suppress(ClientError):  # as when it was done before an earlier death
                    await act(sync, action, group, who)
                    sys.stdout.write("acknowledged")
                    sys.stdout.flush()
                await asyncio.sleep(SETTLES)
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


async def listen(sync: Sync) -> None:
    async for news in sync:
        match news:
            case InviteReceived():
                await sync.client.accept_invite(news.invite_id)
            case MessageArrived() | EncryptionChanged():
                pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
