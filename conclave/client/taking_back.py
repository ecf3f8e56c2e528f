"""Takes a message back, with what repeats it: a text that came too late for some was sent to them once more."""

from uuid import UUID

from conclave.client.api import Client
from conclave.client.codec import Codec
from conclave.client.errors import ResourceError


async def take_back(client: Client, codec: Codec, group_id: UUID, number: int) -> None:
    """Take a message back, whose text is not sent anew from here on. Raises ClientError."""
    codec.gone(group_id, [number])
    for each in codec.repeated(group_id, number):
        try:
            await client.take_back(group_id, each)
        except ResourceError:
            continue  # it is gone already
    await client.take_back(group_id, number)
