"""What every answer has in its head, and answers that are written without aiohttp.

Most of what aiohttp spends on a small response goes into its head: a dictionary of headers, defaults, hooks, checks.
On the busiest routes a head differs in three values only, and is put together from parts that were prepared once.

It must say what aiohttp's say: a test compares the heads.
"""

import asyncio
import time
from collections.abc import Iterable, MutableMapping, Sequence
from email.utils import formatdate
from typing import Any

from aiohttp import web
from aiohttp.web_request import BaseRequest

from conclave.clock import Clock
from conclave.wire.fields import CLOCK_IN_DOUBT
from conclave.wire.negotiate import Format

IN_DOUBT = {CLOCK_IN_DOUBT: "true"}
"""The header of every response while the clock is in doubt: clients then have no time to act on.

Date is left out, too. But a proxy puts in its own where there is none, as HTTP demands.
"""

REQUEST_ID = web.RequestKey("request_id", str)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "conclave"}
"""The headers of every response that depend on nothing."""

JOINED_BYTES = 16 * 1024
"""An answer of at most 16 KiB is joined. A larger one is given to the system in its parts."""

RECORD_BYTES = 16 * 1024
"""A record of TLS has at most 16 KiB."""

_FIXED = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
_HEADS = {
    each: f"HTTP/1.1 200 OK\r\nContent-Type: {each.value}\r\n{_FIXED}X-Request-ID: ".encode("ascii") for each in Format
}
_DOUBT_LINE = "".join(f"{name}: {value}\r\n" for name, value in IN_DOUBT.items()).encode("ascii")
_date = (0, b"")


def own_headers(request: BaseRequest) -> dict[str, str]:
    """Return the headers that every response to ``request`` has."""
    return headers_of(request[REQUEST_ID]) if REQUEST_ID in request else HEADERS


def headers_of(request_id: str) -> dict[str, str]:
    """Return the headers that every response to the request with this id has."""
    return {**HEADERS, "X-Request-ID": request_id}


def written(written_in: Format, request_id: str, parts: Sequence[bytes], clock: Clock, more: bytes) -> list[bytes]:
    """Return an answer with status 200, head and body. ``parts``: those of the body. ``more``: as for ``head_of``."""
    return [head_of(written_in, request_id, sum(map(len, parts)), clock, more), *parts]


def write(transport: asyncio.WriteTransport, parts: Sequence[bytes]) -> None:
    """Write an answer, head and body."""
    if sum(map(len, parts)) <= JOINED_BYTES:
        transport.write(b"".join(parts))
    elif transport.get_extra_info("sslcontext"):
        write_over_tls(transport, parts)
    else:
        transport.writelines(parts)  # joined, a page would be copied, to memory that is taken anew


def write_over_tls(transport: asyncio.WriteTransport, parts: "Iterable[bytes | bytearray | memoryview[Any]]") -> None:
    """Write to a TLS layer, a record of RECORD_BYTES at most at a time.

    The layer hands on to the connection below whatever it gets, and pauses only then, once 64 KiB wait there. What it
    has handed on it calls taken, although it waits in this process: with a whole page at once, all of that.
    """
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), RECORD_BYTES):
            transport.write(view[at : at + RECORD_BYTES])


def written_response(response: web.Response, clock: Clock, more: bytes) -> bytes:
    """Return any other answer, head and body, as aiohttp writes it. ``more``: as for ``head_of``."""
    body = response.body if isinstance(response.body, bytes) else b""
    fields = {**response.headers, "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{name}: {text}" for name, text in fields.items())]
    return "\r\n".join([*lines, ""]).encode("latin-1") + _time_line(clock) + more + b"\r\n" + body


def head_of(written_in: Format, request_id: str, size: int, clock: Clock, more: bytes) -> bytes:
    """Return the head of an answer with status 200 and a body of ``size`` bytes. ``more``: lines with other headers."""
    return b"%b%b\r\n%b%bContent-Length: %d\r\n\r\n" % (
        *(_HEADS[written_in], request_id.encode("ascii"), _time_line(clock), more, size),
    )


def tell_no_time(headers: MutableMapping[str, str], clock: Clock) -> None:
    """Leave the time out of the headers that a response is about to be written with, if the clock is in doubt."""
    if clock.moment().in_doubt:
        headers.pop("Date", None)
        headers.update(IN_DOUBT)


def _time_line(clock: Clock) -> bytes:
    """Return the header Date, made once a second, or that the clock is in doubt."""
    global _date  # noqa: PLW0603 - a value that only depends on the time
    now = int(time.time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode("ascii")
    # The clock is asked last: a jump before that is seen, and one after it does not matter.
    return _DOUBT_LINE if clock.moment().in_doubt else _date[1]
