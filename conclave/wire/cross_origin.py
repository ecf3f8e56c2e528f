"""Lets web pages of other origins read answers (CORS).

A browser shows a page the answer of a server of another origin only if the answer names the page's origin. Before a
request with a token, or with a body in JSON, it asks by OPTIONS whether the page may send that (a preflight).

Cookies have no part in this: a page has to have a token, so ``Access-Control-Allow-Credentials`` is never sent.
"""

from collections.abc import Iterable, Mapping, MutableMapping

from conclave.wire.fields import CLOCK_IN_DOUBT

EXPOSED = f"Retry-After, Date, X-Request-ID, {CLOCK_IN_DOUBT}"
"""The headers of answers that a page may read, beside those that every page may."""

SENT = ("Content-Type", "Content-Encoding", "Accept")
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
            each: {**_VARY, "Access-Control-Allow-Origin": each, "Access-Control-Expose-Headers": EXPOSED}
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
        "Access-Control-Allow-Headers": ", ".join((auth_header, *SENT)),
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }


def _written(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
