"""Slows down clients that guess passwords or open very many accounts, and locks no other client out."""

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
"""At most 2 seconds: how long a user who knows the password waits for the failures of others."""

DELAY_STEPS = 20
"""After 20 more failures for a username, the delay has grown from none to the longest."""

_NAME_LENGTH = 65
"""65 characters, one more than a username has. Longer names, which no user has, may count as one."""


_WRONG_PASSWORDS = "too many wrong passwords"

_TOKEN = object()
"""Tells the keys of registration tokens from those of usernames."""


class Throttle:
    """Checks passwords and hashes new ones. Limits wrong passwords, wrong registration tokens, and accounts.

    Wrong passwords count by username and address together, and by address alone. Beyond either limit an attempt is
    refused, whether the password is right or wrong. By username alone they only delay an attempt, since any client can
    fail for any user. An attempt is counted when its turn has come; a few have a turn at once. Attempts under way count
    as wrong, so that many at once are no more than one after the other. A username without an account is treated as any
    other.

    Accounts and wrong registration tokens count by address. Addresses take turns, so that one with many requests holds
    up only its own. For the event loop only.
    """

    def __init__(self, limits: LimitsConfig, passwords: Passwords, clock: Clock) -> None:
        """Begin without failures and registrations."""
        seconds = limits.login_window
        self._by_name_and_address = SlidingWindow(limits.login_failures, seconds)
        self._by_address = SlidingWindow(limits.login_failures_per_address, seconds)
        self._by_name = SlidingWindow(limits.login_failures + DELAY_STEPS, seconds)
        self._accounts = SlidingWindow(limits.registrations_per_address, seconds)
        self._tokens = SlidingWindow(limits.registration_failures_per_address, seconds)
        self._undelayed = limits.login_failures
        self._trusted = limits.trusted
        self._passwords = passwords
        self._clock = clock
        self._attempts: Counter[Hashable] = Counter()
        self._has_warned = False

    async def require_match(
        self,
        request: web.Request,
        username: str,
        stored: str,
        password: str,
        wrong: type[ApiError] = CredentialsWrongError,
    ) -> None:
        """Check the password that ``request`` shows for ``username`` against a stored hash.

        ``stored``: "" for an unknown user. Raises ``wrong``. Raises TooManyRequestsError or UnavailableError without
        having looked at the password. After many failures for the username it takes up to MAX_DELAY_SECONDS longer,
        so the hash may be out of date by then.
        """
        name, address = username[:_NAME_LENGTH], self._origin(request)
        both, alone = (name, address), (address,)
        limits = (self._by_name_and_address, both), (self._by_address, alone)
        self._require_allowed(_WRONG_PASSWORDS, *limits)
        await sleep(self._delay(name))
        async with self._passwords.checks.turn(address):
            self._require_allowed(_WRONG_PASSWORDS, *limits)  # many may have failed while this one waited
            with self._in_progress(both, alone):
                try:
                    await self._passwords.require_match(stored, password, wrong)
                except wrong:
                    now = self._now()
                    self._by_name_and_address.record(both, now)
                    self._by_address.record(alone, now)
                    self._by_name.record(name, now)
                    raise
            self._by_name_and_address.clear(both)

    async def hash_for_account(self, request: web.Request, password: str) -> str:
        """Hash the password of an account that ``request`` opens.

        Raises TooManyRequestsError or UnavailableError.
        """
        address = self._origin(request)
        self._require_few_accounts(address)
        async with self._passwords.hashes.turn(address):
            self._require_few_accounts(address)  # many may have registered while this one waited
            self._accounts.record(address, self._now())
            return await self._passwords.hash(password)

    async def hash_new_password(self, request: web.Request, password: str) -> str:
        """Hash the new password of an existing account. Raises UnavailableError."""
        async with self._passwords.hashes.turn(self._origin(request)):
            return await self._passwords.hash(password)

    @contextmanager
    def registration_attempt(self, request: web.Request) -> Iterator[None]:
        """Count the registration token that ``request`` shows as wrong if the block raises ForbiddenError.

        Raises TooManyRequestsError without having looked at the token, whether it is right or wrong.
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
        """Forget the wrong passwords for a username, of all addresses. What counts by address alone stays."""
        self._by_name.clear(username)
        self._by_name_and_address.clear_all(lambda key: isinstance(key, tuple) and key[0] == username)

    def _require_few_accounts(self, address: str) -> None:
        seconds = self._accounts.wait(address, self._now())
        if seconds:
            raise TooManyRequestsError("too many new accounts", seconds=seconds)

    def _origin(self, request: web.Request) -> str:
        forwarded = request.headers.getall("X-Forwarded-For", ())
        if forwarded and not self._trusted and not self._has_warned:
            # Once, since any client can cause it. Most likely it is a proxy, whose clients all count as one now.
            self._has_warned = True
            log.warning("no_trusted_proxies", remedy="name the reverse proxy in [limits] trusted_proxies")
        return origin(request.remote, forwarded, self._trusted)

    def _require_allowed(self, text: str, *limits: tuple[SlidingWindow, Hashable]) -> None:
        """Raise TooManyRequestsError with ``text`` if one more failure of a key might exceed its window's limit."""
        now = self._now()
        for window, key in limits:
            seconds = window.wait(key, now)
            if not seconds and window.count(key, now) + self._attempts[key] >= window.limit:
                seconds = 1  # attempts under way may turn out to be right
            if seconds:
                raise TooManyRequestsError(text, seconds=seconds)

    @contextmanager
    def _in_progress(self, *keys: Hashable) -> Iterator[None]:
        """Count an attempt under way for each of ``keys`` while the block lasts."""
        self._attempts.update(keys)
        try:
            yield
        finally:
            self._attempts.subtract(keys)
            for key in keys:
                if not self._attempts[key]:
                    del self._attempts[key]

    def _delay(self, name: str) -> float:
        """Return the seconds by which an attempt is delayed. Delayed attempts do not wait for each other."""
        steps = min(max(0, self._by_name.count(name, self._now()) - self._undelayed), DELAY_STEPS)
        return MAX_DELAY_SECONDS * steps / DELAY_STEPS

    def _now(self) -> int:
        return self._clock.read().since_boot
