"""The headers of every response, and responses that are written without aiohttp.

aiohttp spends most of the time for a small response on its head. On the fast path heads differ in three values only,
and are joined from prepared bytes. A test compares them with those of aiohttp.

Cross-origin headers (CORS) are added here. A browser lets a page read responses of another origin only if they name the
page's origin. Before a request with a token or with a JSON body it sends a preflight request (OPTIONS).

Pages authenticate by token, not by cookies, so ``Access-Control-Allow-Credentials`` is never sent.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from email.utils import formatdate

from aiohttp import web
from aiohttp.web_request import BaseRequest

from conclave.clock import Clock
from conclave.wire.fields import CLOCK_IN_DOUBT
from conclave.wire.formats import Format

IN_DOUBT = {CLOCK_IN_DOUBT: "true"}
"""The header of every response while the clock is in doubt, instead of Date.

A proxy adds its own Date, as HTTP requires.
"""

REQUEST_ID = web.RequestKey("request_id", str)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "conclave"}
"""The constant headers of every response."""

JOINED_BYTES = 16 * 1024
"""Responses of at most 16 KiB are joined. Larger ones are written in parts."""

RECORD_BYTES = 16 * 1024
"""The largest TLS record."""

_FIXED = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
_HEADS = {
    each: f"HTTP/1.1 200 OK\r\nContent-Type: {each.value}\r\n{_FIXED}X-Request-ID: ".encode("ascii") for each in Format
}
_DOUBT_LINE = "".join(f"{name}: {value}\r\n" for name, value in IN_DOUBT.items()).encode("ascii")
_date = (0, b"")


def response_headers(request: BaseRequest) -> dict[str, str]:
    """Return the common headers of a response to ``request``."""
    return headers_of(request[REQUEST_ID]) if REQUEST_ID in request else HEADERS


def headers_of(request_id: str) -> dict[str, str]:
    """Return the common headers of a response to the request with this id."""
    return {**HEADERS, "X-Request-ID": request_id}


def ok_response(written_in: Format, request_id: str, parts: Sequence[bytes], clock: Clock, more: bytes) -> list[bytes]:
    """Return a response with status 200: head and ``parts`` of the body. ``more``: further header lines."""
    head = b"%b%b\r\n%b%bContent-Length: %d\r\n\r\n" % (
        *(_HEADS[written_in], request_id.encode("ascii"), _time_line(clock), more, sum(map(len, parts))),
    )
    return [head, *parts]


def write(transport: asyncio.WriteTransport, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write a response, or a part of one.

    A TLS layer passes all its bytes to the transport below before it pauses, and does not count them as unsent. So it
    gets one record at a time.
    """
    if sum(map(len, parts)) <= JOINED_BYTES:
        transport.write(b"".join(parts))
    elif transport.get_extra_info("sslcontext"):
        for part in parts:
            view = memoryview(part)
            for begin in range(0, len(view), RECORD_BYTES):
                transport.write(view[begin : begin + RECORD_BYTES])
    else:
        transport.writelines(parts)  # joining would copy a cached page for each client


def response_bytes(response: web.Response, clock: Clock, more: bytes) -> bytes:
    """Return any other response as aiohttp writes it. ``more``: further header lines."""
    body = response.body if isinstance(response.body, bytes) else b""
    fields = {**response.headers, "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{name}: {text}" for name, text in fields.items())]
    return "\r\n".join([*lines, ""]).encode("latin-1") + _time_line(clock) + more + b"\r\n" + body


def omit_date(headers: MutableMapping[str, str], clock: Clock) -> None:
    """Replace Date in the headers of a response if the clock is in doubt."""
    if clock.moment().in_doubt:
        headers.pop("Date", None)
        headers.update(IN_DOUBT)


def _time_line(clock: Clock) -> bytes:
    """Return the header line Date, cached for a second, or the line for a clock in doubt."""
    global _date  # noqa: PLW0603 - a value that only depends on the time
    now = int(time.time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode("ascii")
    # Checked last: a jump before it is detected, and one after it does not matter.
    return _DOUBT_LINE if clock.moment().in_doubt else _date[1]


EXPOSED_HEADERS = f"Retry-After, Date, X-Request-ID, {CLOCK_IN_DOUBT}"
"""The response headers that a page may read, besides the safelisted ones."""

ALLOWED_HEADERS = ("Content-Type", "Content-Encoding", "Accept")
"""The headers that a request may have, besides the one with the token."""

PREFLIGHT_SECONDS = 7200
"""Browsers may cache a preflight for two hours, the maximum of Chromium."""

_VARY = {"Vary": "Origin"}
"""In every response while an origin is allowed: a cache must not serve it to another origin."""


class CrossOrigin:
    """The CORS headers by the origin of the requesting page. Only for the event loop's thread."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """``allowed``: the origins, as browsers write them; empty: no CORS headers."""
        self._headers_by_origin = {
            each: {**_VARY, "Access-Control-Allow-Origin": each, "Access-Control-Expose-Headers": EXPOSED_HEADERS}
            for each in allowed
        }
        self._other_headers = _VARY if self._headers_by_origin else {}
        self._lines = {each.encode("ascii"): _written(headers) for each, headers in self._headers_by_origin.items()}
        self._other_lines = _written(self._other_headers)

    def allows(self, origin: str | None) -> bool:
        """Return whether a page of this origin may read responses. ``origin``: the request's header, if any."""
        return origin in self._headers_by_origin

    def add_to(self, headers: MutableMapping[str, str], origin: str | None) -> None:
        """Add the CORS headers to the headers of a response. ``origin``: as for ``allows``."""
        varies = headers.get("Vary")
        headers.update(self._headers_by_origin.get(origin or "", self._other_headers))
        if varies and varies != headers["Vary"]:
            headers["Vary"] += f", {varies}"

    def lines(self, origin: bytes) -> bytes:
        """Return the CORS headers as lines of a head. ``origin``: b"" if the request has none."""
        return self._lines.get(origin, self._other_lines)


def preflight(methods: Iterable[str], auth_header: str) -> dict[str, str]:
    """Return the headers of a response to a preflight. ``methods``: the methods of the path."""
    return {
        "Access-Control-Allow-Methods": ", ".join(sorted(methods)),
        "Access-Control-Allow-Headers": ", ".join((auth_header, *ALLOWED_HEADERS)),
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }


def _written(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
