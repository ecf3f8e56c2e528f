"""How long the messages of a group live, and what was taken back of them."""

from dataclasses import dataclass

from conclave.wire.fields import QueryInteger
from conclave.wire.schemas.base import QuerySchema
from conclave.wire.schemas.messages import MAX_SEQUENCE_NUM


@dataclass(frozen=True)
class GetRetention:
    """After which number to list what was taken back; None: what was taken back last."""

    taken_back_after: int | None = None


class RetentionQuery(QuerySchema):
    """Which numbers of messages that were taken back: the first 1,000 above ``taken_back_after``, or the last 1,000."""

    result_class = GetRetention

    taken_back_after = QueryInteger(least=0, most=MAX_SEQUENCE_NUM)
