"""Knowing that a response has left: what has to wait until then must not be done for a broken connection."""

import asyncio

from aiohttp import web

STALL_SECONDS = 60
"""A client that takes nothing for so long is cut off."""

LONGEST_SECONDS = 15 * 60
"""One that takes a little now and then, after so long: the response is in memory meanwhile."""


async def hand_over(request: web.Request, response: web.StreamResponse) -> bool:
    """Send ``response`` and tell whether all of it was handed to the connection.

    False if the connection broke before, or took too long. Handed over means: taken by the
    operating system; behind TLS, by the TLS layer, which may hold back up to 64 KiB.
    """
    transport = request.transport
    if transport is None:
        return False
    # With a limit of nothing a write is tried at once, and draining waits until the kernel has taken it all.
    transport.set_write_buffer_limits(high=0)
    sending = asyncio.create_task(_send(request, response))
    left = -1
    try:
        for _ in range(LONGEST_SECONDS // STALL_SECONDS):
            await asyncio.wait({sending}, timeout=STALL_SECONDS)
            if sending.done() or left == (left := transport.get_write_buffer_size()):
                break
        if not sending.done():
            transport.abort()
        return await sending
    except ConnectionError:
        return False
    finally:
        sending.cancel()


async def _send(request: web.Request, response: web.StreamResponse) -> bool:
    protocol = request.protocol
    await response.prepare(request)
    await response.write_eof()
    # Not whether the connection still stands: many clients close it as soon as they have everything. But a
    # connection that is lost while writing is paused stays paused.
    return not protocol.writing_paused
