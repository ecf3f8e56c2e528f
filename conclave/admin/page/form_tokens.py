"""Form tokens against cross-site request forgery (CSRF): each is valid once, and for a limited time."""

import hashlib
import hmac
import secrets
import time

VALID_SECONDS = 12 * 3600.0
"""A form is valid for 12 hours."""


MAX_REMEMBERED = 100_000
"""The maximum number of used tokens in memory, about 20 MB."""


class FormTokenError(Exception):
    """A form is rejected. The message says why, and what to do."""


class FormTokens:
    """Makes and redeems the form tokens of one process.

    Other web pages cannot read a token, so they cannot forge a form. If a form is sent twice,
    the second one is rejected.
    """

    def __init__(self) -> None:
        """Generate a new secret, so that a restart invalidates all tokens."""
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def make(self) -> str:
        """Return a new token for one form."""
        body = f"{int(time.monotonic())}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign(body)}"

    def redeem(self, token: str) -> None:
        """Redeem a token, which becomes invalid. Raises FormTokenError."""
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._sign(body).encode(), signature.encode("utf-8", "replace")):
            raise FormTokenError("this form is not of this server, or older than its last start: reload the page")
        now = time.monotonic()
        if now > int(body.partition(".")[0]) + VALID_SECONDS:
            raise FormTokenError("this form is too old: reload the page")
        if body in self._used:
            raise FormTokenError("this form was already sent, and acts only once: reload the page to see the result")
        self._used[body] = now
        while (oldest := next(iter(self._used))) != body and self._can_forget(oldest, now):
            del self._used[oldest]

    def _can_forget(self, oldest: str, now: float) -> bool:
        return now > self._used[oldest] + VALID_SECONDS or len(self._used) > MAX_REMEMBERED

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
