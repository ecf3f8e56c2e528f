"""The base class of all calls, with the transport and the reader of paged lists."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar
from uuid import UUID

from conclave.client.errors import AnswerError, AnswerTooLongError, InputError
from conclave.client.transport import Call, Transport
from conclave.errors import ErrorCode
from conclave.wire.formats import Format

PAGE_SIZE = 1_000
"""Items per page of a list: the server's maximum."""

MAX_PAGES = 1_000
"""Maximum number of pages of a list. A longer list is treated as endless."""

MAX_RESTARTS = 10
"""Maximum number of restarts. Reading restarts if the last item of a page is deleted before the next request."""


class ListAnswer(Protocol):
    """An answer with a page of a list."""

    @property
    def more(self) -> bool:
        """Whether more pages follow."""


A = TypeVar("A", bound=ListAnswer)
T = TypeVar("T")


class ApiCalls:
    """The base class of the calls."""

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
        """Return a whole list, read in pages of ``limit`` items, or PAGE_SIZE.

        ``items``: returns the items of an answer. ``id_of``: returns the id of an item. Raises ClientError.
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
                raise AnswerError("the server announces more pages of a list, but sends no further items")
            after = id_of(page[-1])
        raise AnswerTooLongError(f"the list has more than {MAX_PAGES:,} pages")
