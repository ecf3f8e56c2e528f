"""The query of a group's retention policy."""

from dataclasses import dataclass

from conclave.wire.fields import QueryInteger
from conclave.wire.schemas.base import QuerySchema
from conclave.wire.schemas.messages import MAX_SEQUENCE_NUM


@dataclass(frozen=True)
class GetRetention:
    """The number after which to list messages taken back; None: list the last ones."""

    taken_back_after: int | None = None


class RetentionQuery(QuerySchema):
    """The numbers of messages taken back to list: the first 1,000 above ``taken_back_after``, or the last 1,000."""

    result_class = GetRetention

    taken_back_after = QueryInteger(least=0, most=MAX_SEQUENCE_NUM)
