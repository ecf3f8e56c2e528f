"""Guessing passwords over HTTP."""

import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import structlog

from conclave import app_keys
from conclave.auth import passwords, throttle
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from tests.conftest import Running, StartServer
from tests.support.client import PASSWORD, Client, expect
from tests.support.server import PATIENCE, until

GUESS = "wrong password"
WINDOW = 300
LIMITS = LimitsConfig(trusted_proxies=("127.0.0.1",), login_failures=3, login_failures_per_address=8)
HERE, ELSEWHERE = "198.51.100.1", "203.0.113.1"


class Site:
    """A server behind a proxy on the same host, and the logins that it is asked for."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.clock = running.clock

    async def login(self, username: str, password: str = GUESS, at: str = HERE) -> int:
        """Return the status of a login from the address ``at``."""
        return (await self.answer(username, password, at))[0]

    async def answer(self, username: str, password: str = GUESS, at: str = HERE) -> tuple[int, str, int]:
        """Return status, ``Retry-After`` and error code of a login."""
        return await self.ask({"username": username, "password": password}, {"X-Forwarded-For": at} if at else {})

    async def ask(self, body: dict[str, str], headers: dict[str, str]) -> tuple[int, str, int]:
        url = f"{self.running.url}/api/v1/login"
        async with self.running.http.post(url, json=body, headers=headers) as response:
            answer = await response.json()
            return response.status, response.headers.get("Retry-After", ""), answer.get("error_code", 0)

    async def guess(self, times: int, username: str = "alice", at: str = HERE) -> None:
        """Fail, and be told so each time."""
        assert [await self.login(username, at=at) for _ in range(times)] == [401] * times


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_DELAY_SECONDS", 0.002)


@pytest.fixture
async def site(config: Config, start_server: StartServer, fast: None) -> AsyncIterator[Site]:
    async with start_server(replace(config, limits=LIMITS)) as running:
        await running.users("alice", "bob")
        yield Site(running)


async def test_too_many_guesses_are_refused_until_the_first_of_them_is_forgotten(site: Site) -> None:
    await site.guess(1)
    site.clock.advance(10)
    await site.guess(2)
    site.clock.advance(5)
    assert await site.answer("alice") == (429, str(WINDOW - 15), 100)
    assert await site.answer("alice", PASSWORD) == (429, str(WINDOW - 15), 100)
    site.clock.advance(WINDOW - 16)
    assert await site.answer("alice", PASSWORD) == (429, "1", 100)
    site.clock.advance(1)
    assert await site.login("alice") == 401
    assert await site.answer("alice") == (429, "10", 100)


async def test_what_is_refused_does_not_postpone_the_end(site: Site) -> None:
    await site.guess(3)
    for _ in range(5):
        site.clock.advance(WINDOW // 5 - 1)
        assert await site.login("alice") == 429
    site.clock.advance(5)
    assert await site.login("alice", PASSWORD) == 200


async def test_a_wall_clock_that_is_set_neither_ends_nor_lengthens_a_refusal(site: Site) -> None:
    await site.guess(3)
    site.clock.set_wrong(10 * WINDOW)
    assert await site.answer("alice") == (429, str(WINDOW), 100)
    site.clock.set_wrong(-20 * WINDOW)
    site.clock.advance(WINDOW)
    assert await site.login("alice", PASSWORD) == 200


async def test_another_user_of_the_same_address_is_not_refused(site: Site) -> None:
    await site.guess(3)
    assert await site.login("bob", PASSWORD) == 200


async def test_nobody_can_lock_a_user_out_from_elsewhere(site: Site) -> None:
    for number in range(20):
        await site.guess(3, at=f"192.0.2.{number}")
        assert await site.login("alice", at=f"192.0.2.{number}") == 429
    assert await site.login("alice", PASSWORD) == 200


async def test_failures_elsewhere_delay_a_login_by_ever_more_up_to_a_bound(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []

    async def note(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr(throttle, "sleep", note)
    for number in range(30):
        await site.guess(1, at=f"192.0.2.{number}")
    assert await site.login("alice", PASSWORD) == 200
    step = throttle.MAX_DELAY_SECONDS / throttle.DELAY_STEPS
    grown = [max(0, number - LIMITS.login_failures) * step for number in range(30)]
    assert delays == pytest.approx([min(each, throttle.MAX_DELAY_SECONDS) for each in [*grown, 1]])
    delays.clear()
    assert await site.login("bob", PASSWORD) == 200
    assert delays == [0]


async def test_those_who_are_delayed_wait_side_by_side(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are let go before the first has been answered."""
    for number in range(30):
        await site.guess(1, at=f"192.0.2.{number}")
    delays: list[float] = []
    all_wait = asyncio.Event()

    async def wait(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 5:
            all_wait.set()
        await all_wait.wait()

    monkeypatch.setattr(throttle, "sleep", wait)
    logins = [site.login("alice", PASSWORD, at=f"198.51.100.{number}") for number in range(5)]
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*logins) == [200] * 5
    assert delays == [throttle.MAX_DELAY_SECONDS] * 5


async def test_an_address_that_fails_for_many_users_is_refused_for_all(site: Site) -> None:
    for name in ("alice", "bob", "carol", "dora"):
        await site.guess(2, name)
    assert await site.answer("erik") == (429, str(WINDOW), 100)
    assert await site.login("bob", PASSWORD) == 429
    assert await site.login("bob", PASSWORD, at=ELSEWHERE) == 200
    site.clock.advance(WINDOW)
    assert await site.login("bob", PASSWORD) == 200


async def test_many_guesses_at_once_are_no_more_than_one_after_the_other(site: Site) -> None:
    statuses = await asyncio.gather(*(site.login("alice") for _ in range(30)))
    assert sorted(statuses) == [401] * 3 + [429] * 27
    names = [f"user{number}" for number in range(30)]
    statuses = await asyncio.gather(*(site.login(name, at=ELSEWHERE) for name in names))
    assert sorted(statuses) == [401] * 8 + [429] * 22


async def test_logins_at_once_that_turn_out_right_are_all_let_in(site: Site) -> None:
    assert await asyncio.gather(*(site.login("alice", PASSWORD) for _ in range(30))) == [200] * 30
    await site.guess(3)


async def test_the_right_password_begins_the_count_anew_but_not_that_of_the_address(site: Site) -> None:
    for _ in range(2):
        await site.guess(2)
        assert await site.login("alice", PASSWORD) == 200
    await site.guess(3)
    await site.guess(1, "bob")
    assert await site.login("bob", PASSWORD) == 429


async def test_only_wrong_passwords_count(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"X-Forwarded-For": HERE}
    for body in ({"username": "alice"}, {"username": "alice", "password": GUESS, "mistyped": "x"}):
        assert [(await site.ask(body, headers))[0] for _ in range(4)] == [400] * 4

    async def fail(*_: object) -> None:
        raise RuntimeError

    app = site.running.app
    for broken, function in ((app[app_keys.PASSWORDS], "require_match"), (app[app_keys.STORE], "read")):
        with monkeypatch.context() as context:
            context.setattr(broken, function, fail)
            assert [await site.login("alice") for _ in range(4)] == [500] * 4
    await site.guess(3)


@pytest.mark.parametrize(
    ("path", "field", "more"),
    [("/change-password", "current_password", {"new_password": "another one"}), ("/delete-account", "password", {})],
)
async def test_a_session_does_not_help_to_guess_its_users_password(
    site: Site, path: str, field: str, more: dict[str, str]
) -> None:
    """All ways to try a password of a user are counted together."""
    thief = Client(site.running.http, site.running.url)
    await thief.login("alice")
    for _ in range(2):
        await expect(thief.post(path, **{field: GUESS}, **more), 401, 203)
    await site.guess(1, at="127.0.0.1")
    await expect(thief.post(path, **{field: PASSWORD}, **more), 429, 100)
    assert await site.login("alice", PASSWORD, at="127.0.0.1") == 429
    assert (await thief.get("/me"))["username"] == "alice"
    site.clock.advance(WINDOW)
    await thief.post(path, **{field: PASSWORD}, **more)


@pytest.mark.parametrize("username", ["nobody", "n" * 64, "n" * 1000, "n\u00f6body", "Alice"])
async def test_a_username_that_nobody_has_is_treated_as_any_other(site: Site, username: str) -> None:
    for name, at in (("alice", HERE), (username, ELSEWHERE)):
        assert [await site.answer(name, at=at) for _ in range(4)] == [(401, "", 202)] * 3 + [(429, str(WINDOW), 100)]


async def test_usernames_count_as_they_are_given(site: Site) -> None:
    await site.guess(3, "Alice")
    assert await site.login("alice", PASSWORD) == 200


async def test_whom_a_client_claims_to_forward_for_is_ignored(
    config: Config, start_server: StartServer, fast: None
) -> None:
    async with start_server(replace(config, limits=replace(LIMITS, trusted_proxies=("192.0.2.1",)))) as running:
        site = Site(running)
        await running.user("alice")
        for number in range(3):
            await site.guess(1, at=f"198.51.100.{number}")
        assert await site.login("alice", at=ELSEWHERE) == 429
        assert await site.login("alice", at="") == 429


@pytest.mark.parametrize(("trusted", "warned"), [((), 1), (("192.0.2.1",), 0)])
async def test_a_proxy_that_nobody_named_is_logged_once(
    config: Config, start_server: StartServer, fast: None, trusted: tuple[str, ...], warned: int
) -> None:
    async with start_server(replace(config, limits=replace(LIMITS, trusted_proxies=trusted))) as running:
        with structlog.testing.capture_logs() as lines:
            for at in ("", HERE, ELSEWHERE):
                await Site(running).guess(1, at=at)
    assert [line["event"] for line in lines].count("no_trusted_proxies") == warned


async def test_what_a_client_writes_in_front_of_the_proxys_word_is_ignored(site: Site) -> None:
    for number in range(3):
        await site.guess(1, at=f"192.0.2.{number}, {HERE}")
    assert await site.login("alice", at=f"192.0.2.9, {HERE}") == 429
    assert await site.login("alice", at=f"{HERE}, {ELSEWHERE}") == 401


async def test_addresses_of_one_ipv6_network_count_as_one(site: Site) -> None:
    for number in range(3):
        await site.guess(1, at=f"2001:db8:0:7::{number}")
    assert await site.login("alice", at="[2001:db8:0:7:ffff::9]:4711") == 429
    assert await site.login("alice", at="2001:db8:0:8::1") == 401


@pytest.fixture
def held_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """New passwords are not hashed until the event is set; others are checked as ever."""
    go_on, original = threading.Event(), passwords.hash_password

    def held(password: str) -> str:
        go_on.wait(30)
        return original(password)

    monkeypatch.setattr(passwords, "hash_password", held)
    yield go_on
    go_on.set()


async def register(site: Site, name: str, at: str = HERE) -> tuple[int, str, int]:
    body = {"username": name, "password": PASSWORD}
    url = f"{site.running.url}/api/v1/register"
    async with site.running.http.post(url, json=body, headers={"X-Forwarded-For": at}) as response:
        answer = await response.json()
        return response.status, response.headers.get("Retry-After", ""), answer.get("error_code", 0)


@pytest.mark.parametrize("name", ["alice", "nobody"])
async def test_no_login_waits_for_registrations(site: Site, held_hashes: threading.Event, name: str) -> None:
    flood = [asyncio.create_task(register(site, f"user{number}", ELSEWHERE)) for number in range(20)]
    hashes = site.running.app[app_keys.PASSWORDS].hashes
    await until(lambda: hashes.waiting == 19)
    async with asyncio.timeout(PATIENCE):
        assert await site.login(name, PASSWORD) == (200 if name == "alice" else 401)
    held_hashes.set()
    assert [status for status, _, _ in await asyncio.gather(*flood)] == [201] * 20


async def test_a_new_password_waits_with_the_registrations(site: Site, held_hashes: threading.Event) -> None:
    alice = Client(site.running.http, site.running.url)
    await alice.login("alice")
    first = asyncio.create_task(register(site, "user"))
    hashes = site.running.app[app_keys.PASSWORDS].hashes
    await until(lambda: not hashes.has_room)
    change = asyncio.create_task(
        alice.post("/change-password", current_password=PASSWORD, new_password="battery staple")
    )
    await until(lambda: hashes.waiting == 1)
    held_hashes.set()
    await change
    assert (await first)[0] == 201
    assert await site.login("alice", "battery staple") == 200


async def test_where_too_many_wait_the_next_is_told_to_come_again(
    site: Site, held_hashes: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "MAX_WAITING_PER_KEY", 3)
    flood = [asyncio.create_task(register(site, f"user{number}")) for number in range(4)]
    hashes = site.running.app[app_keys.PASSWORDS].hashes
    await until(lambda: hashes.waiting == 3)
    assert await register(site, "late") == (503, "5", 0)
    other = asyncio.create_task(register(site, "elsewhere", ELSEWHERE))
    await until(lambda: hashes.waiting == 4)
    held_hashes.set()
    assert [status for status, _, _ in await asyncio.gather(*flood, other)] == [201] * 5
    assert (await register(site, "late"))[0] == 201


async def test_one_address_opens_only_so_many_accounts(config: Config, start_server: StartServer) -> None:
    limits = replace(LIMITS, registrations_per_address=3)
    async with start_server(replace(config, limits=limits)) as running:
        site = Site(running)
        statuses = await asyncio.gather(*(register(site, f"user{number}") for number in range(8)))
        assert sorted(status for status, _, _ in statuses) == [201] * 3 + [429] * 5
        site.clock.advance(10)
        assert await register(site, "late") == (429, str(WINDOW - 10), 100)
        assert (await register(site, "elsewhere", ELSEWHERE))[0] == 201
        site.clock.advance(WINDOW - 10)
        assert [(await register(site, "late"))[0] for _ in range(5)] == [201] + [409] * 4, "taken names do not count"
        assert (await register(site, "later"))[0] == 201


async def test_nothing_is_left_in_memory_when_the_window_has_passed(site: Site) -> None:
    counted = site.running.app[app_keys.THROTTLE]
    for number in range(20):
        await site.guess(1, f"user{number}" * 100, at=f"192.0.2.{number}")
    site.clock.advance(WINDOW)
    assert await site.login("bob", PASSWORD) == 200
    assert [len(window) for window in (counted._by_name_and_address, counted._by_address, counted._by_name)] == [
        0,
        0,
        0,
    ]
    assert not counted._attempts


@pytest.mark.parametrize("password_memory", [passwords.MEMORY_KIB])
async def test_a_wrong_password_takes_as_long_for_a_user_that_nobody_is(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as running:
        site = Site(running)
        await running.user("alice")
        took: dict[str, list[float]] = {"alice": [], "nobody": []}
        for _ in range(15):
            for name, times in took.items():
                began = time.perf_counter()
                assert await site.login(name, at="") == 401
                times.append(time.perf_counter() - began)
        known, unknown = map(statistics.median, took.values())
        assert 0.5 < known / unknown < 2
