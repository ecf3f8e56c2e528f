"""Takes a message back, with what repeats it: a text that came too late for some was sent to them once more."""

import contextlib
from uuid import UUID

from conclave.client.api import Client
from conclave.client.codec import Codec
from conclave.client.errors import ResourceError


async def take_back(client: Client, codec: Codec, group_id: UUID, number: int) -> None:
    """Take a message back, whose text is not sent anew from here on. Raises ClientError.

    What repeats it and is under way, since its answer was lost perhaps, is taken back by ``Repeating`` once it comes.
    """
    codec.erase_messages(group_id, [number], are_taken_back=True)
    for each in codec.repeats_of(group_id, number):
        with contextlib.suppress(ResourceError):  # it is gone already
            await client.take_back(group_id, each)
        codec.record_taken_back(group_id, each)
    await client.take_back(group_id, number)
