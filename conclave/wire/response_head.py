"""The headers of every response, and responses that are written without aiohttp.

aiohttp spends most of the time for a small response on its head: a dictionary of headers, defaults, hooks, checks. On
the fast path heads differ in three values only, and are joined from prepared bytes. A test compares the heads of both.

Cross-origin headers (CORS) are added here. A browser shows a page the answer of a server of another origin only if the
answer names the page's origin. Before a request with a token, or with a body in JSON, it asks by OPTIONS whether the
page may send that (a preflight).

Cookies have no part in this: a page has to have a token, so ``Access-Control-Allow-Credentials`` is never sent.
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
"""The header of every response while the clock is in doubt: clients then have no time to act on.

Date is omitted too. A proxy adds its own, as HTTP demands.
"""

REQUEST_ID = web.RequestKey("request_id", str)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "conclave"}
"""The headers of every response that depend on nothing."""

JOINED_BYTES = 16 * 1024
"""A response of at most 16 KiB is joined. A larger one is given to the system in its parts."""

RECORD_BYTES = 16 * 1024
"""A record of TLS has at most 16 KiB."""

_FIXED = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
_HEADS = {
    each: f"HTTP/1.1 200 OK\r\nContent-Type: {each.value}\r\n{_FIXED}X-Request-ID: ".encode("ascii") for each in Format
}
_DOUBT_LINE = "".join(f"{name}: {value}\r\n" for name, value in IN_DOUBT.items()).encode("ascii")
_date = (0, b"")


def response_headers(request: BaseRequest) -> dict[str, str]:
    """Return the headers that every response to ``request`` has."""
    return headers_of(request[REQUEST_ID]) if REQUEST_ID in request else HEADERS


def headers_of(request_id: str) -> dict[str, str]:
    """Return the headers that every response to the request with this id has."""
    return {**HEADERS, "X-Request-ID": request_id}


def ok_response(written_in: Format, request_id: str, parts: Sequence[bytes], clock: Clock, more: bytes) -> list[bytes]:
    """Return a response with status 200, head and body. ``parts``: those of the body. ``more``: further headers."""
    head = b"%b%b\r\n%b%bContent-Length: %d\r\n\r\n" % (
        *(_HEADS[written_in], request_id.encode("ascii"), _time_line(clock), more, sum(map(len, parts))),
    )
    return [head, *parts]


def write(transport: asyncio.WriteTransport, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write a response, or a piece of one.

    A TLS layer passes on to the connection below whatever it gets, and pauses only then, once 64 KiB wait there. What
    it has passed on does not count as unsent there, although it waits in this process. So it gets a record at a time.
    """
    if sum(map(len, parts)) <= JOINED_BYTES:
        transport.write(b"".join(parts))
    elif transport.get_extra_info("sslcontext"):
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), RECORD_BYTES):
                transport.write(view[at : at + RECORD_BYTES])
    else:
        transport.writelines(parts)  # joined, a cached page would be copied for each client


def response_bytes(response: web.Response, clock: Clock, more: bytes) -> bytes:
    """Return any other response, head and body, as aiohttp writes it. ``more``: further headers."""
    body = response.body if isinstance(response.body, bytes) else b""
    fields = {**response.headers, "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{name}: {text}" for name, text in fields.items())]
    return "\r\n".join([*lines, ""]).encode("latin-1") + _time_line(clock) + more + b"\r\n" + body


def omit_date(headers: MutableMapping[str, str], clock: Clock) -> None:
    """Remove the time from headers that are about to be written, if the clock is in doubt."""
    if clock.moment().in_doubt:
        headers.pop("Date", None)
        headers.update(IN_DOUBT)


def _time_line(clock: Clock) -> bytes:
    """Return the header Date, which is made once a second, or the one that says that the clock is in doubt."""
    global _date  # noqa: PLW0603 - a value that only depends on the time
    now = int(time.time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode("ascii")
    # Last: a jump before that is noticed, and one after it does not matter.
    return _DOUBT_LINE if clock.moment().in_doubt else _date[1]


EXPOSED_HEADERS = f"Retry-After, Date, X-Request-ID, {CLOCK_IN_DOUBT}"
"""The headers of answers that a page may read, beside those that every page may."""

ALLOWED_HEADERS = ("Content-Type", "Content-Encoding", "Accept")
"""The headers that a request may have, beside the one with the token."""

PREFLIGHT_SECONDS = 7200
"""A browser may remember the answer to a preflight for two hours. Chromium does so for no longer."""

_VARY = {"Vary": "Origin"}
"""On every answer while an origin is allowed, also without one: a cache must not give it to another origin."""


class CrossOrigin:
    """The headers of answers, by the origin of the page that asks. Only for the event loop's thread."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """``allowed``: the origins, as browsers write them; without any, answers have no header of this kind."""
        self._allowed = {
            each: {**_VARY, "Access-Control-Allow-Origin": each, "Access-Control-Expose-Headers": EXPOSED_HEADERS}
            for each in allowed
        }
        self._others = _VARY if self._allowed else {}
        self._lines = {each.encode("ascii"): _written(headers) for each, headers in self._allowed.items()}
        self._other_lines = _written(self._others)

    def allows(self, origin: str | None) -> bool:
        """Tell whether a page of this origin may read answers. ``origin``: the request's header, if it has one."""
        return origin in self._allowed

    def add_to(self, headers: MutableMapping[str, str], origin: str | None) -> None:
        """Complete the headers of an answer to a page of this origin. ``origin``: as for ``allows``."""
        varies = headers.get("Vary")
        headers.update(self._allowed.get(origin or "", self._others))
        if varies and varies != headers["Vary"]:
            headers["Vary"] += f", {varies}"

    def lines(self, origin: bytes) -> bytes:
        """Return the same headers as they are written in a head. ``origin``: b"" if the request has none."""
        return self._lines.get(origin, self._other_lines)


def preflight(methods: Iterable[str], auth_header: str) -> dict[str, str]:
    """Return the headers that only the answer to a preflight has. ``methods``: those of the path."""
    return {
        "Access-Control-Allow-Methods": ", ".join(sorted(methods)),
        "Access-Control-Allow-Headers": ", ".join((auth_header, *ALLOWED_HEADERS)),
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }


def _written(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
