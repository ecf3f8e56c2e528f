"""Form tokens, against forged requests (CSRF): a form is taken only if this page has written it, lately, and once."""

import hashlib
import hmac
import secrets
import time

VALID_SECONDS = 12 * 3600.0
"""A form may be sent for 12 hours after it was written."""


MAX_REMEMBERED = 100_000
"""Of at most 100,000 used tickets it is remembered that they were used: about 20 MB, more forms than are ever sent."""


class FormTokenError(Exception):
    """A form is not taken. The message says why, and what to do."""


class FormTokens:
    """Makes the tickets of one process, and takes each once.

    A page from elsewhere cannot read one, so it cannot send a form in an operator's name. A form that is sent twice, by
    a second click or a page that is loaded again, acts once.
    """

    def __init__(self) -> None:
        """Begin with a secret of its own: a restart ends all tickets."""
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def make(self) -> str:
        """Return a new ticket, for one form."""
        body = f"{int(time.monotonic())}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign(body)}"

    def redeem(self, ticket: str) -> None:
        """Take a ticket; it is void from here on. Raises TicketError."""
        body, _, signature = ticket.rpartition(".")
        if not hmac.compare_digest(self._sign(body).encode(), signature.encode("utf-8", "replace")):
            raise FormTokenError(
                "this form was not written by this server, or before its last start: load the page again"
            )
        now = time.monotonic()
        if now > int(body.partition(".")[0]) + VALID_SECONDS:
            raise FormTokenError("this form is too old: load the page again")
        if body in self._used:
            raise FormTokenError(
                "this form was sent already, and acts only once: load the page again to see what it did"
            )
        self._used[body] = now
        while (oldest := next(iter(self._used))) != body and self._is_forgotten(oldest, now):
            del self._used[oldest]

    def _is_forgotten(self, oldest: str, now: float) -> bool:
        return now > self._used[oldest] + VALID_SECONDS or len(self._used) > MAX_REMEMBERED

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
