"""Limits guessing of passwords and registration of accounts, without locking out other clients."""

from asyncio import sleep
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from aiohttp import web

from conclave.auth.passwords import Passwords
from conclave.auth.sliding_window import SlidingWindow
from conclave.clock import Clock
from conclave.config.addresses import origin
from conclave.config.limits import LimitsConfig
from conclave.errors import ApiError, CredentialsWrongError, ForbiddenError, TooManyRequestsError
from conclave.logs.setup import get_logger

log = get_logger(__name__)

MAX_DELAY_SECONDS = 2.0
"""The longest delay of a correct login because of failures of other clients."""

DELAY_STEPS = 20
"""The number of failures for a username over which the delay grows from 0 to the maximum."""

_NAME_LENGTH = 65
"""One more than the longest username. Longer names, which no user has, are truncated."""


_WRONG_PASSWORDS = "too many wrong passwords"

_TOKEN = object()
"""Distinguishes the keys of registration tokens from the keys of usernames."""


class Throttle:
    """Checks and hashes passwords. Limits wrong passwords, wrong registration tokens, and new accounts.

    Wrong passwords count by username and address together, and by address alone. Beyond either limit attempts are
    rejected, whether the password is right or wrong. By username alone they only delay attempts, since any client can
    fail for any user. Attempts in progress count as wrong, so that concurrent attempts are limited too. Unknown
    usernames are treated like others.

    Accounts and wrong registration tokens count by address. Addresses take turns, so that one with many requests delays
    only its own. For the event loop only.
    """

    def __init__(self, limits: LimitsConfig, passwords: Passwords, clock: Clock) -> None:
        """Start without recorded failures."""
        seconds = limits.login_window
        self._by_name_and_address = SlidingWindow(limits.login_failures, seconds)
        self._by_address = SlidingWindow(limits.login_failures_per_address, seconds)
        self._by_name = SlidingWindow(limits.login_failures + DELAY_STEPS, seconds)
        self._accounts = SlidingWindow(limits.registrations_per_address, seconds)
        self._tokens = SlidingWindow(limits.registration_failures_per_address, seconds)
        self._failures_without_delay = limits.login_failures
        self._trusted = limits.trusted
        self._passwords = passwords
        self._clock = clock
        self._attempts: Counter[Hashable] = Counter()
        self._has_warned = False

    async def require_match(
        self,
        request: web.Request,
        username: str,
        password_hash: str,
        password: str,
        wrong: type[ApiError] = CredentialsWrongError,
    ) -> None:
        """Check the password in ``request`` for ``username`` against a stored hash.

        ``password_hash``: "" for an unknown user. Raises ``wrong``. Raises TooManyRequestsError or UnavailableError
        without checking the password. After many failures for the username it takes up to MAX_DELAY_SECONDS longer, so
        the hash may be outdated by then.
        """
        name, address = username[:_NAME_LENGTH], self._origin(request)
        name_key, address_key = (name, address), (address,)
        limits = (self._by_name_and_address, name_key), (self._by_address, address_key)
        self._require_allowed(_WRONG_PASSWORDS, *limits)
        await sleep(self._delay(name))
        async with self._passwords.checks.turn(address):
            self._require_allowed(_WRONG_PASSWORDS, *limits)  # other attempts may have failed during the wait
            with self._in_progress(name_key, address_key):
                try:
                    await self._passwords.require_match(password_hash, password, wrong)
                except wrong:
                    now = self._now()
                    self._by_name_and_address.record(name_key, now)
                    self._by_address.record(address_key, now)
                    self._by_name.record(name, now)
                    raise
            self._by_name_and_address.clear(name_key)

    async def hash_for_account(self, request: web.Request, password: str) -> str:
        """Hash the password of a new account that ``request`` registers.

        Raises TooManyRequestsError or UnavailableError.
        """
        address = self._origin(request)
        self._require_account_allowed(address)
        async with self._passwords.hashes.turn(address):
            self._require_account_allowed(address)  # others may have registered during the wait
            self._accounts.record(address, self._now())
            return await self._passwords.hash(password)

    async def hash_new_password(self, request: web.Request, password: str) -> str:
        """Hash the new password of an existing account. Raises UnavailableError."""
        async with self._passwords.hashes.turn(self._origin(request)):
            return await self._passwords.hash(password)

    @contextmanager
    def registration_attempt(self, request: web.Request) -> Iterator[None]:
        """Count the registration token in ``request`` as wrong if the block raises ForbiddenError.

        Raises TooManyRequestsError before the block, whether the token is right or wrong.
        """
        key = (_TOKEN, self._origin(request))
        self._require_allowed("too many wrong registration tokens", (self._tokens, key))
        with self._in_progress(key):
            try:
                yield
            except ForbiddenError:
                self._tokens.record(key, self._now())
                raise

    def unblock(self, username: str) -> None:
        """Delete the failures for a username from all addresses. The counts by address alone are kept."""
        self._by_name.clear(username)
        self._by_name_and_address.clear_all(lambda key: isinstance(key, tuple) and key[0] == username)

    def _require_account_allowed(self, address: str) -> None:
        seconds = self._accounts.wait(address, self._now())
        if seconds:
            raise TooManyRequestsError("too many new accounts", seconds=seconds)

    def _origin(self, request: web.Request) -> str:
        forwarded = request.headers.getall("X-Forwarded-For", ())
        if forwarded and not self._trusted and not self._has_warned:
            # Once, since any client can cause it. Probably a proxy, whose clients all count as one address.
            self._has_warned = True
            log.warning("no_trusted_proxies", remedy="name the reverse proxy in [limits] trusted_proxies")
        return origin(request.remote, forwarded, self._trusted)

    def _require_allowed(self, text: str, *limits: tuple[SlidingWindow, Hashable]) -> None:
        """Raise TooManyRequestsError with ``text`` if one more failure of a key could exceed its limit."""
        now = self._now()
        for window, key in limits:
            seconds = window.wait(key, now)
            if not seconds and window.count(key, now) + self._attempts[key] >= window.limit:
                seconds = 1  # attempts in progress may succeed
            if seconds:
                raise TooManyRequestsError(text, seconds=seconds)

    @contextmanager
    def _in_progress(self, *keys: Hashable) -> Iterator[None]:
        """Count an attempt in progress for each of ``keys`` while the block lasts."""
        self._attempts.update(keys)
        try:
            yield
        finally:
            self._attempts.subtract(keys)
            for key in keys:
                if not self._attempts[key]:
                    del self._attempts[key]

    def _delay(self, name: str) -> float:
        """Return the delay of an attempt in seconds."""
        steps = min(max(0, self._by_name.count(name, self._now()) - self._failures_without_delay), DELAY_STEPS)
        return MAX_DELAY_SECONDS * steps / DELAY_STEPS

    def _now(self) -> int:
        return self._clock.read().since_boot
