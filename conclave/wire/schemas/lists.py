"""Which part of a list is asked for."""

from dataclasses import dataclass
from typing import ClassVar

from conclave.wire.fields import LONGEST_PAGE, Identifier, QueryInteger
from conclave.wire.schemas.base import QuerySchema


@dataclass(frozen=True)
class Paging:
    """Which page of a list is asked for: at most ``limit`` items after the one with the id ``after``."""

    limit: int | None = None
    after: bytes | None = None

    @property
    def is_given(self) -> bool:
        """Whether a page is asked for, and not just the list."""
        return self.limit is not None or self.after is not None


class ListQuery(QuerySchema):
    """Which page of a list: at most ``limit`` items, those after the item with the id ``after``."""

    makes: ClassVar[type] = Paging

    limit = QueryInteger(least=1, most=LONGEST_PAGE)
    after = Identifier()
