"""What all calls share: the way to the server, and reading lists to their end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar
from uuid import UUID

from conclave.client.errors import AnswerError, AnswerTooLongError, InputError
from conclave.client.transport import Call, Transport
from conclave.errors import ErrorCode
from conclave.wire.formats import Format

PAGE_SIZE = 1_000
"""A list is read 1,000 items at a time, which is the most that a server gives."""

MAX_PAGES = 1_000
"""A list that goes on after 1,000 pages is taken for one without an end."""

MAX_RESTARTS = 10
"""Reading begins again at most 10 times because the last item of a page was gone when the next was asked for."""


class ListAnswer(Protocol):
    """An answer with a list."""

    @property
    def more(self) -> bool:
        """Whether more follow."""


A = TypeVar("A", bound=ListAnswer)
T = TypeVar("T")


class ApiCalls:
    """Something that calls a server."""

    transport: Transport

    async def _read_list(
        self,
        call: Call,
        kind: type[A],
        items: Callable[[A], tuple[T, ...]],
        id_of: Callable[[T], UUID],
        *,
        limit: int | None = None,
        written_in: Format | None = None,
    ) -> tuple[T, ...]:
        """Return a whole list, which is read ``limit`` items at a time, or PAGE.

        ``items`` and ``id_of``: return the list in an answer, and an item's id. Raises ClientError.
        """
        found: dict[UUID, T] = {}
        after: UUID | None = None
        restarts = 0
        for _ in range(MAX_PAGES):
            query = {**(call.query or {}), "limit": str(limit or PAGE_SIZE), **({"after": str(after)} if after else {})}
            try:
                answer = await self.transport.request(replace(call, query=query), kind, written_in=written_in)
            except InputError as error:
                if after is None or error.code != ErrorCode.INPUT_VALIDATION or restarts == MAX_RESTARTS:
                    raise
                restarts, after = restarts + 1, None
                found.clear()
                continue
            page = items(answer)
            found |= {id_of(each): each for each in page}
            if not answer.more:
                return tuple(found.values())
            if not page or id_of(page[-1]) == after:
                raise AnswerError("the server says that a list goes on, and gives nothing more of it")
            after = id_of(page[-1])
        raise AnswerTooLongError(f"the list goes on after {MAX_PAGES:,} pages")
