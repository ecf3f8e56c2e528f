"""The client: all calls of the protocol, for one user on one server."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Self

from conclave.client.calls.accounts import AccountCalls
from conclave.client.calls.groups import GroupCalls
from conclave.client.calls.invites import InviteCalls
from conclave.client.calls.members import MemberCalls
from conclave.client.calls.messages import MessageCalls
from conclave.client.retry import Backoff
from conclave.client.transport import Timeouts, Transport
from conclave.wire.formats import Format


class Client(AccountCalls, GroupCalls, MemberCalls, InviteCalls, MessageCalls):
    """One user on one server. Use it within ``async with``. Every call raises ClientError.

    After a lost answer, calls that are safe to repeat are repeated: reads, sends, receipts, settings.
    """

    def __init__(
        self,
        url: str,
        *,
        written_in: Format = Format.JSON,
        ca: Path | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - it is frozen
        backoff: Backoff = Backoff(),  # noqa: B008 - as above
        auth_header: str = "Authorization",
        chance: Callable[[], float] = random.random,
    ) -> None:
        """See ``Transport`` for the parameters."""
        self.transport = Transport(
            url,
            written_in=written_in,
            ca=ca,
            timeouts=timeouts,
            backoff=backoff,
            auth_header=auth_header,
            chance=chance,
        )

    def __repr__(self) -> str:
        return f"Client({str(self.transport.url)!r})"

    async def __aenter__(self) -> Self:
        await self.transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.transport.__aexit__(*exc_info)
