"""Slows down who guesses passwords, and locks nobody else out."""

from asyncio import sleep
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from aiohttp import web

from conclave.addresses import origin
from conclave.auth import Passwords
from conclave.clock import Clock
from conclave.config import LimitsConfig
from conclave.errors import ApiError, CredentialsWrongError, TooManyRequestsError
from conclave.limits import SlidingWindow
from conclave.logs import get_logger

log = get_logger(__name__)

LONGEST_DELAY_SECONDS = 2.0
"""The most that failures elsewhere cost a user who knows the password."""

DELAY_STEPS = 20
"""How many failures for a username it takes from no delay to the longest."""

_NAME_LENGTH = 65
"""One more than a username has: longer ones, which nobody has, may count as one."""


class Throttle:
    """Checks passwords, a limited number of wrong ones.

    Wrong ones count by username and address, and by address alone; beyond either limit an attempt is refused, right
    or wrong. By username alone they only delay it, since anybody can fail for anybody. Attempts under way count as
    wrong ones, so that many at once are no more than one after the other. A username that nobody has is treated as any
    other. For the event loop only.
    """

    def __init__(self, limits: LimitsConfig, passwords: Passwords, clock: Clock) -> None:
        """Begin with nobody having failed."""
        seconds = limits.login_window
        self._of_both = SlidingWindow(limits.login_failures, seconds)
        self._of_address = SlidingWindow(limits.login_failures_per_address, seconds)
        self._of_name = SlidingWindow(limits.login_failures + DELAY_STEPS, seconds)
        self._undelayed = limits.login_failures
        self._trusted = limits.trusted
        self._passwords = passwords
        self._clock = clock
        self._under_way: Counter[Hashable] = Counter()
        self._has_warned = False

    async def require_match(
        self,
        request: web.Request,
        username: str,
        stored: str,
        password: str,
        wrong: type[ApiError] = CredentialsWrongError,
    ) -> None:
        """Check the password that ``request`` shows for ``username`` against a stored hash, "" of an unknown user.

        Raises ``wrong``, or TooManyRequestsError without having looked at the password. Takes up to
        LONGEST_DELAY_SECONDS longer after many failures for the username: the hash may be out of date by then.
        """
        name, now = username[:_NAME_LENGTH], self._now()
        address = self._origin(request)
        self._require_room(self._of_both, (name, address), now)
        self._require_room(self._of_address, (address,), now)
        with self._counted((name, address), (address,), (name, None)):
            await sleep(self._delay((name, None), now))
            try:
                await self._passwords.require_match(stored, password, wrong)
            except wrong:
                now = self._now()
                self._of_both.record((name, address), now)
                self._of_address.record((address,), now)
                self._of_name.record((name, None), now)
                raise
            self._of_both.clear((name, address))

    def _origin(self, request: web.Request) -> str:
        forwarded = request.headers.getall("X-Forwarded-For", ())
        if forwarded and not self._trusted and not self._has_warned:
            # Once: it is most likely a proxy, all of whose clients count as one now, but anybody can cause it.
            self._has_warned = True
            log.warning("no_trusted_proxies", remedy="name the reverse proxy in [limits] trusted_proxies")
        return origin(request.remote, forwarded, self._trusted)

    def _require_room(self, window: SlidingWindow, key: Hashable, now: int) -> None:
        """Raise TooManyRequestsError if another failure might be one too many."""
        seconds = window.wait(key, now)
        if not seconds and window.count(key, now) + self._under_way[key] >= window.limit:
            seconds = 1  # those under way may turn out to be right
        if seconds:
            raise TooManyRequestsError("too many wrong passwords", seconds=seconds)

    @contextmanager
    def _counted(self, *keys: Hashable) -> Iterator[None]:
        """Count an attempt under way for each of ``keys`` while the block lasts."""
        self._under_way.update(keys)
        try:
            yield
        finally:
            self._under_way.subtract(keys)
            for key in keys:
                if not self._under_way[key]:
                    del self._under_way[key]

    def _delay(self, key: Hashable, now: int) -> float:
        """Return the seconds that an attempt under way has to wait; none of them waits for another."""
        failures = self._of_name.count(key, now) + self._under_way[key] - 1
        steps = min(max(0, failures - self._undelayed), DELAY_STEPS)
        return LONGEST_DELAY_SECONDS * steps / DELAY_STEPS

    def _now(self) -> int:
        return self._clock.read().since_boot
