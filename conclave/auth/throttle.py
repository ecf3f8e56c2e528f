"""Slows down clients that guess passwords or open very many accounts, and locks no other client out.

``SlidingWindow`` counts by key how often something happened lately, in bounded memory.
"""

from asyncio import sleep
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from math import ceil

from aiohttp import web

from conclave.auth.passwords import Passwords
from conclave.clock import Clock
from conclave.config.addresses import origin
from conclave.config.limits import LimitsConfig
from conclave.errors import ApiError, CredentialsWrongError, ForbiddenError, TooManyRequestsError
from conclave.logs.setup import get_logger

MAX_MOMENTS = 100_000
"""At most 100,000 moments in one window, over all keys.

That is about 20 MB with ids as keys, and 65 MB with the longest usernames.
"""

MOST_KEYS = 100_000
"""At most 100,000 users or groups are counted in one Pace: about 20 MB."""

TINY_SECONDS = 1e-6
"""A wait of less than a microsecond is none: sums of fractions are not exact."""

HANDOUTS = 10
"""At most 10 key packages of one user are handed out in HANDOUT_SECONDS."""

HANDOUT_SECONDS = 60


class SlidingWindow:
    """Allows each key ``limit`` times in any ``seconds``.

    Times are whole seconds of the monotonic clock, ``Reading.since_boot``. If a time is earlier than one given
    before, the later one counts. Keys have to be short, since only the number of moments is bounded. Beyond
    ``capacity`` moments, the keys that were recorded the longest ago are forgotten; ``capacity`` is at least ``limit``.
    For one thread only.
    """

    def __init__(self, limit: int, seconds: int, capacity: int = MAX_MOMENTS) -> None:
        """Begin with nothing recorded."""
        self.limit = limit
        self.seconds = seconds
        self._capacity = capacity
        self._moments: OrderedDict[Hashable, list[int]] = OrderedDict()
        """The moments of each key that count, ascending. Keys are in the order of their last moment."""
        self._size = 0
        self._now = 0

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._moments)

    def count(self, key: Hashable, now: int) -> int:
        """Return how often ``key`` was recorded in the window that ends at ``now``; at most ``limit``."""
        return len(self._recent(key, now))

    def wait(self, key: Hashable, now: int, amount: int = 1) -> int:
        """Return the seconds until ``key`` is allowed ``amount`` more times; 0 means now. Records nothing.

        Raises ValueError for less than 1, and for more than ``limit``, which is never allowed.
        """
        if not 1 <= amount <= self.limit:
            raise ValueError(f"{amount} is not between 1 and {self.limit}")
        moments = self._recent(key, now)
        over = len(moments) + amount - self.limit
        return moments[over - 1] + self.seconds - self._now if over > 0 else 0

    def record(self, key: Hashable, now: int, amount: int = 1) -> None:
        """Note that ``key`` happened ``amount`` times. Only the latest ``limit`` are kept: others decide nothing."""
        before = self._recent(key, now)
        moments = (before + [self._now] * min(amount, self.limit))[-self.limit :]
        self._size += len(moments) - len(before)
        self._moments[key] = moments
        self._moments.move_to_end(key)
        while self._size > self._capacity:
            self._forget_oldest()

    def clear(self, key: Hashable) -> None:
        """Forget what was recorded of ``key``."""
        self._size -= len(self._moments.pop(key, ()))

    def clear_all(self, matches: Callable[[Hashable], bool]) -> None:
        """Forget every key that ``matches``. It looks at all keys."""
        for key in [each for each in self._moments if matches(each)]:
            self.clear(key)

    def _recent(self, key: Hashable, now: int) -> list[int]:
        """Forget the keys, and the moments of ``key``, whose window has passed; return the moments of ``key`` left."""
        self._now = max(self._now, now)
        passed = self._now - self.seconds
        while self._moments and next(iter(self._moments.values()))[-1] <= passed:
            self._forget_oldest()
        moments = self._moments.get(key, [])
        gone = bisect_right(moments, passed)
        del moments[:gone]
        self._size -= gone
        return moments

    def _forget_oldest(self) -> None:
        self._size -= len(self._moments.popitem(last=False)[1])


class Pace:
    """Allows each key ``limit`` times at once, and evenly ``limit`` times in ``seconds`` after that.

    So any ``seconds`` have less than twice ``limit``. It keeps one number for each key, of at most MOST_KEYS; the keys
    that were recorded the longest ago are forgotten first. Times are as in SlidingWindow. For one thread at a time.
    """

    def __init__(self, limit: int, seconds: int) -> None:
        """Begin with nothing recorded."""
        self._interval = seconds / limit
        self._seconds = seconds
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """When each key will have been used for so long that nothing of it counts."""

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._full_at)

    def wait(self, key: Hashable, now: int, amount: int = 1) -> int:
        """Return the whole seconds until ``key`` is allowed ``amount`` more times; 0 means now. Records nothing."""
        over = max(self._full_at.get(key, 0.0), now) + amount * self._interval - now - self._seconds
        return max(1, ceil(over)) if over > TINY_SECONDS else 0

    def record(self, key: Hashable, now: int, amount: int = 1) -> None:
        """Note that ``key`` happened ``amount`` times."""
        self._full_at[key] = max(self._full_at.get(key, 0.0), now) + amount * self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > MOST_KEYS:
            self._full_at.popitem(last=False)


log = get_logger(__name__)

LONGEST_DELAY_SECONDS = 2.0
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
        self._of_both = SlidingWindow(limits.login_failures, seconds)
        self._of_address = SlidingWindow(limits.login_failures_per_address, seconds)
        self._of_name = SlidingWindow(limits.login_failures + DELAY_STEPS, seconds)
        self._accounts = SlidingWindow(limits.registrations_per_address, seconds)
        self._tokens = SlidingWindow(limits.registration_failures_per_address, seconds)
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
        """Check the password that ``request`` shows for ``username`` against a stored hash.

        ``stored``: "" for an unknown user. Raises ``wrong``. Raises TooManyRequestsError or UnavailableError without
        having looked at the password. After many failures for the username it takes up to LONGEST_DELAY_SECONDS longer,
        so the hash may be out of date by then.
        """
        name, address = username[:_NAME_LENGTH], self._origin(request)
        both, alone = (name, address), (address,)
        limits = (self._of_both, both), (self._of_address, alone)
        self._require_room(_WRONG_PASSWORDS, *limits)
        await sleep(self._delay(name))
        async with self._passwords.checks.turn(address):
            self._require_room(_WRONG_PASSWORDS, *limits)  # many may have failed while this one waited
            with self._counted(both, alone):
                try:
                    await self._passwords.require_match(stored, password, wrong)
                except wrong:
                    now = self._now()
                    self._of_both.record(both, now)
                    self._of_address.record(alone, now)
                    self._of_name.record(name, now)
                    raise
            self._of_both.clear(both)

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

    async def hash_anew(self, request: web.Request, password: str) -> str:
        """Hash the new password of an existing account. Raises UnavailableError."""
        async with self._passwords.hashes.turn(self._origin(request)):
            return await self._passwords.hash(password)

    @contextmanager
    def registration_token_tried(self, request: web.Request) -> Iterator[None]:
        """Count the registration token that ``request`` shows as wrong if the block raises ForbiddenError.

        Raises TooManyRequestsError without having looked at the token, whether it is right or wrong.
        """
        key = (_TOKEN, self._origin(request))
        self._require_room("too many wrong registration tokens", (self._tokens, key))
        with self._counted(key):
            try:
                yield
            except ForbiddenError:
                self._tokens.record(key, self._now())
                raise

    def unblock(self, username: str) -> None:
        """Forget the wrong passwords for a username, of all addresses. What counts by address alone stays."""
        self._of_name.clear(username)
        self._of_both.clear_all(lambda key: isinstance(key, tuple) and key[0] == username)

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

    def _require_room(self, text: str, *limits: tuple[SlidingWindow, Hashable]) -> None:
        """Raise TooManyRequestsError with ``text`` if one more failure of a key might exceed its window's limit."""
        now = self._now()
        for window, key in limits:
            seconds = window.wait(key, now)
            if not seconds and window.count(key, now) + self._under_way[key] >= window.limit:
                seconds = 1  # attempts under way may turn out to be right
            if seconds:
                raise TooManyRequestsError(text, seconds=seconds)

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

    def _delay(self, name: str) -> float:
        """Return the seconds by which an attempt is delayed. Delayed attempts do not wait for each other."""
        steps = min(max(0, self._of_name.count(name, self._now()) - self._undelayed), DELAY_STEPS)
        return LONGEST_DELAY_SECONDS * steps / DELAY_STEPS

    def _now(self) -> int:
        return self._clock.read().since_boot
