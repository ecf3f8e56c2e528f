"""A reload: what is taken over of a changed configuration, how, and that it is all or nothing."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from conclave import app_keys
from conclave.admin.access import Guard
from conclave.config.admin import AdminConfig
from conclave.config.log import LogConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config, setting_names
from conclave.retention import rehearsal
from conclave.retention.policy import KEEP
from conclave.retention.rehearsal import Change
from conclave.retention.resolve import Lifetimes, PolicySettings
from conclave.server.reload import WAYS, Reloader, Way, described, differing, taken_over
from conclave.server.supervise import Supervisor
from conclave.server.tls import Tls, context_of
from conclave.store.engine.faults import StoreError
from conclave.system import certificate
from conclave.system.notify import ServiceManager
from tests.conftest import Running
from tests.support.certificate import make_certificate
from tests.support.client import Client, RefusedError


class Worker(Supervisor):
    """Stands for the worker: it only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Config | str] = []

    def follow(self, config: Config) -> None:
        self.told.append(config)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        self.told.append("paused")
        yield
        self.told.append("goes on")


class Server:
    """A running server with a file of settings that can be reloaded."""

    def __init__(self, running: Running, path: Path) -> None:
        self.running = running
        self.path = path
        self.worker = Worker()
        guard = Guard(running.config.admin)
        self.reloader = Reloader(running.app, self.worker, None, path, asyncio.Event(), ServiceManager(), guard)

    @property
    def config(self) -> Config:
        return self.running.app[app_keys.IN_FORCE].config

    async def reload(self, text: str) -> list[dict[str, Any]]:
        """Reload with ``text`` after what the file needs; return what is logged."""
        fixed = f'database_path = "{self.running.config.database}"\n'
        self.path.write_text(f'{fixed}{text}\n[cleanup]\ndisk_reserve = "0"\n')
        with structlog.testing.capture_logs() as lines:
            await self.reloader.reload()
        return [dict(line) for line in lines if line["event"] != "doubtful_setting"]


@pytest.fixture
def server(running: Running, tmp_path: Path) -> Server:
    return Server(running, tmp_path / "conclave.toml")


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


async def numbers(client: Client, group: str) -> list[int]:
    found = await client.get(f"/groups/{group}/messages", limit=500)
    return [int(each["sequence_num"]) for each in found["messages"]]


def test_every_setting_is_taken_over_in_exactly_one_way() -> None:
    """Whoever adds a setting says here whether a reload takes it over."""
    assert sorted(WAYS) == sorted(setting_names())


def test_the_settings_of_the_policy_are_those_that_decide_what_is_deleted() -> None:
    at_top = {"message_retention", "token_ttl_seconds", "invite_ttl_seconds"}
    of_policy = {f"{'' if each.name in at_top else 'retention.'}{each.name}" for each in fields(PolicySettings)}
    assert {name for name, way in WAYS.items() if way is Way.POLICY} == of_policy - {"token_ttl_seconds"}
    assert WAYS["token_ttl_seconds"] is Way.RESTART


def test_what_takes_a_restart_stays_as_it_was_and_the_rest_is_taken_over() -> None:
    former = Config(database_path="/a.db", cleanup_interval=10)
    retention = RetentionConfig(fetch_confirmation="next_fetch", default_policy=Lifetimes(max_lifetime=5))
    read = Config(database_path="/b.db", cleanup_interval=20, token_ttl_seconds=5, retention=retention)
    config = taken_over(former, read, has_tls=False)
    assert differing(former, config) == ["cleanup_interval", "retention.default_policy"]
    assert differing(config, read) == ["database_path", "token_ttl_seconds", "retention.fetch_confirmation"]
    assert config.policy.default_policy == Lifetimes(max_lifetime=5)


@pytest.mark.parametrize("has_tls", [False, True])
def test_tls_is_neither_begun_nor_ended_by_a_reload(has_tls: bool) -> None:
    secured, plain = Config(tls_cert_path="c", tls_key_path="k"), Config()
    former, read = (secured, plain) if has_tls else (plain, secured)
    config = taken_over(former, read, has_tls=has_tls)
    assert config == former
    assert differing(config, read) == ["tls_cert_path", "tls_key_path"]
    moved = Config(tls_cert_path="c2", tls_key_path="k2")
    assert taken_over(secured, moved, has_tls=True) == moved


def test_changes_are_told_in_words_and_secrets_not_at_all() -> None:
    config = Config(
        cleanup_interval=60,
        registration_enabled=False,
        registration_token="hush",
        retention=RetentionConfig(groups={"g": Lifetimes()}),
        log=LogConfig(level="error"),
    )
    assert described(Config(), config) == {
        "cleanup_interval": "1h -> 1min",
        "registration_enabled": "true -> false",
        "registration_token": "changed",
        "retention.groups": "changed",
        "log.level": "info -> error",
    }


async def test_settings_of_the_server_count_from_the_next_request_on(server: Server) -> None:
    await server.running.user("alice")
    [line] = await server.reload("registration_enabled = false")
    assert (line["event"], line["changed"]) == ("reloaded", {"registration_enabled": "true -> false"})
    with pytest.raises(RefusedError) as refused:
        await server.running.user("bob")
    assert refused.value.status == 403
    await server.reload("")
    await server.running.user("bob")
    assert server.worker.told[-1] is server.config


async def test_limits_change_and_what_was_counted_goes_on_counting(server: Server) -> None:
    for name in ("alice", "bob", "carol"):
        await server.running.user(name)
    await server.reload('limits.registrations_per_address = 3\nlimits.response_memory = "64m"')
    with pytest.raises(RefusedError) as refused:
        await server.running.user("dave")
    assert refused.value.status == 429, "three were opened before the limit was three"
    assert server.running.app[app_keys.BUDGET].size == 64 * 1024**2
    await server.reload("limits.registrations_per_address = 4")
    await server.running.user("dave")


async def test_a_faulty_file_changes_nothing_and_each_fault_is_logged(server: Server) -> None:
    former = server.config
    lines = await server.reload('message_retention = "5x"\nregistration_enabled = "no"\ncolour = 1')
    assert [(line["event"], line["log_level"]) for line in lines] == [("reload_refused", "error")] * 3
    assert server.config is former
    server.path.unlink()
    with structlog.testing.capture_logs() as logged:
        await server.reloader.reload()
    [line] = logged
    assert line["event"] == "reload_refused"
    assert "cannot be read" in line["fault"]
    assert server.config is former, "a file that is away for a moment does not mean the defaults"


@pytest.mark.parametrize("text", ["", "# [retention]\n", "\n\n[cleanup]\n"])
async def test_a_file_that_sets_nothing_is_refused_and_opens_nothing(server: Server, text: str) -> None:
    """Editors empty a file before they write it, and a full disk may leave it so."""
    await server.reload("registration_enabled = false")
    server.path.write_text(text)
    with structlog.testing.capture_logs() as logged:
        assert not await server.reloader.reload()
    assert "sets nothing" in logged[-1]["fault"]
    with pytest.raises(RefusedError) as refused:
        await server.running.user("alice")
    assert refused.value.status == 403


async def test_a_pipe_is_not_read_a_second_time(server: Server) -> None:
    """As the shell makes one of <(...): whoever opens it again would wait for a writer, or find nothing."""
    os.mkfifo(server.path)
    with structlog.testing.capture_logs() as logged:
        assert not await server.reloader.reload()
    [line] = logged
    assert (line["event"], "cannot be read again" in line["fault"]) == ("reload_refused", True)


async def test_another_token_in_the_file_of_tokens_takes_a_restart(server: Server, tmp_path: Path) -> None:
    """Nobody may think that a token which has leaked is void by a reload."""
    file = tmp_path / "token"
    file.write_text("0123456789abcdef" * 2)
    admin = AdminConfig(token_file=str(file))
    config = server.running.app[app_keys.IN_FORCE].config = replace(server.config, admin=admin)
    guard = Guard(config.admin)
    server.reloader = Reloader(
        server.running.app, server.worker, None, server.path, asyncio.Event(), ServiceManager(), guard
    )
    named = f'admin.token_file = "{file}"'
    assert events(await server.reload(named)) == ["reloaded"]
    file.write_text("fedcba9876543210" * 2)
    lines = await server.reload(named)
    assert events(lines) == ["needs_restart"]
    assert lines[0]["settings"] == ["admin.token_file"]
    file.write_text("short")
    [line] = await server.reload(named)
    assert (line["event"], "token_file" in line["fault"]) == ("reload_refused", True)
    assert "short" not in line["fault"]


async def test_what_takes_a_restart_is_named(server: Server) -> None:
    lines = await server.reload('auth_header = "X-Token"\ncleanup_interval = "5s"')
    assert events(lines) == ["needs_restart", "reloaded"]
    assert lines[0]["settings"] == ["auth_header"]
    assert (server.config.auth_header, server.config.cleanup_interval) == ("Authorization", 5)


async def test_what_takes_a_restart_is_not_followed_by_news_that_nothing_has_changed(server: Server) -> None:
    assert events(await server.reload('auth_header = "X-Token"')) == ["needs_restart"]


async def test_a_longer_policy_revives_nothing_not_even_from_memory(server: Server) -> None:
    running = server.running
    await server.reload('message_retention = "100s"')
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group)
    running.clock.advance(90)
    await alice.send(group)
    running.clock.advance(20)
    assert await alice.numbers(group) == [2], "and the page is remembered"
    lines = await server.reload('message_retention = "1000s"')
    assert events(lines) == ["policy_changed", "reloaded"]
    assert await alice.numbers(group) == [2]
    running.clock.advance(500)
    assert await alice.numbers(group) == [2], "the second goes by the new policy"
    assert (await alice.get(f"/groups/{group}/retention"))["effective_expiry_seconds"] == 1000
    assert server.worker.told.count("paused") == server.worker.told.count("goes on") == 2


async def test_what_expires_while_the_marks_are_settled_goes_by_the_new_policy_throughout(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server.running
    await server.reload('message_retention = "100s"')
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group)
    running.clock.advance(100)
    settling, goes_on = threading.Event(), threading.Event()
    settle = rehearsal.settle

    def take_long(*args: Any, **kwargs: Any) -> Change:
        running.clock.advance(5)
        settling.set()
        assert goes_on.wait(10)
        return settle(*args, **kwargs)

    monkeypatch.setattr(rehearsal, "settle", take_long)
    reloading = asyncio.create_task(server.reload('message_retention = "1000s"'))
    await asyncio.to_thread(settling.wait, 10)
    meanwhile = await numbers(alice, group)
    goes_on.set()
    assert events(await reloading)[-2:] == ["policy_changed", "reloaded"]
    assert (meanwhile, await numbers(alice, group)) == ([1], [1]), "it was never hidden, so it does not come back"


async def test_a_shorter_policy_hides_at_once_what_is_remembered(server: Server) -> None:
    running = server.running
    alice = await running.user("alice")
    group = await alice.create_group("g")
    for _ in range(20):
        await alice.send(group)
    running.clock.advance(50)
    await alice.send(group)
    assert len(await alice.numbers(group)) == 21
    assert len(await alice.numbers(group)) == 21, "from memory"
    for _ in range(300):
        await alice.send(group)
    [changed, _] = await server.reload('message_retention = "40s"')
    assert (changed["event"], changed["messages_hidden"]) == ("policy_changed", 20)
    assert await numbers(alice, group) == list(range(21, 322))
    stored = await running.query("SELECT policy_settings FROM server_state")
    assert '"message_retention": 40' in stored[0][0], "other processes compare theirs with it"


async def test_a_change_that_a_start_would_refuse_is_refused_and_changes_nothing(server: Server) -> None:
    running = server.running
    alice = await running.user("alice")
    group = await alice.create_group("g")
    for _ in range(5):
        await alice.send(group)
    running.clock.advance(50)
    former = server.config
    before = await running.query("SELECT expired_before, policy_settings FROM groups, server_state")
    [line] = await server.reload('message_retention = "40s"\nregistration_enabled = false')
    assert line["event"] == "reload_refused"
    assert "would hide 5 of 5 messages at once" in line["fault"]
    assert "--accept-policy-change" in line["fault"]
    assert server.config is former, "nor is anything else taken over"
    assert await running.query("SELECT expired_before, policy_settings FROM groups, server_state") == before
    assert await alice.numbers(group) == [1, 2, 3, 4, 5]
    await running.user("bob")


async def test_a_wrong_clock_changes_no_policy(server: Server) -> None:
    running = server.running
    alice = await running.user("alice")
    await alice.create_group("g")
    running.clock.set_wrong(-10_000)
    lines = await server.reload('message_retention = "40s"')
    refused = [line for line in lines if line["event"] == "reload_refused"]
    assert len(refused) == 1
    assert "--accept-clock" in refused[0]["fault"]
    assert server.config.message_retention == KEEP


async def test_the_policy_changes_between_writes_and_never_within_one(server: Server) -> None:
    """Writes that wait while the policy changes go by the new one; each sees one policy from its begin to its end."""
    running = server.running
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=1000)

    async def change(expiry: int) -> int | None:
        try:
            await alice.set_expiry(group, expiry)
        except RefusedError as error:
            return error.status
        return None

    before, reload, after = change(900), server.reload('message_retention = "100s"'), change(800)
    results = await asyncio.gather(before, reload, after)
    assert {results[0], results[2]} <= {None, 400}
    assert await change(700) == 400, "more than the cap"
    assert await change(50) is None


async def test_a_page_that_was_read_under_the_former_policy_is_not_remembered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = server.running
    alice = await running.user("alice")
    group = await alice.create_group("g")
    for _ in range(20):
        await alice.send(group)
    running.clock.advance(50)
    for _ in range(300):
        await alice.send(group)
    store = running.app[app_keys.STORE]
    touched = "INSERT INTO touches (group_key) SELECT group_key FROM groups"
    await store.write(lambda connection: connection.execute(touched) and None)
    read_store = store.read

    async def read_then_reload(*args: Any, **kwargs: Any) -> Any:
        result = await read_store(*args, **kwargs)
        monkeypatch.setattr(store, "read", read_store)
        await server.reload('message_retention = "40s"')
        return result

    monkeypatch.setattr(store, "read", read_then_reload)
    assert len(await numbers(alice, group)) == 320, "it was asked for before"
    assert server.config.message_retention == 40
    assert await numbers(alice, group) == list(range(21, 321))
    assert await numbers(alice, group) == list(range(21, 321)), "from memory"


async def test_however_often_it_is_asked_one_reload_is_under_way_and_one_waits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, goes_on = asyncio.Event(), asyncio.Event()
    begun = 0

    async def reload() -> None:
        nonlocal begun
        begun += 1
        await goes_on.wait()

    app, guard = server.running.app, Guard(server.config.admin)
    reloader = Reloader(app, server.worker, None, server.path, again, ServiceManager(), guard)
    monkeypatch.setattr(reloader, "reload", reload)
    async with reloader:
        for _ in range(100):
            again.set()
            await asyncio.sleep(0)
        assert begun == 1
        goes_on.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert begun == 2


async def test_a_reload_that_fails_while_the_server_stops_is_refused_as_any_other(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def change(*_: Any) -> None:
        begun.set()
        await goes_on.wait()
        raise StoreError("the database is locked")

    app = server.running.app
    monkeypatch.setattr(app[app_keys.CLOCK_WATCH], "change", change)
    server.path.write_text('message_retention = "100s"\n')
    guard = Guard(server.config.admin)
    with structlog.testing.capture_logs() as logged:
        async with Reloader(app, server.worker, None, server.path, again, ServiceManager(), guard):
            again.set()
            await begun.wait()
            asyncio.get_running_loop().call_later(0.01, goes_on.set)
    refused = [line["fault"] for line in logged if line["event"] == "reload_refused"]
    assert refused == ["the database is locked"]


async def test_a_certificate_that_was_read_again_is_known_by_its_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path)
    app, pair = server.running.app, (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    config = app[app_keys.IN_FORCE].config = replace(server.config, tls_cert_path=pair[0], tls_key_path=pair[1])
    context = context_of(config)
    assert context
    guard, manager = Guard(config.admin), ServiceManager()
    server.reloader = Reloader(app, server.worker, Tls(context), server.path, asyncio.Event(), manager, guard)
    text = f'tls_cert_path = "{pair[0]}"\ntls_key_path = "{pair[1]}"'
    monkeypatch.setattr(certificate, "expires_at", lambda _: 123)
    assert events(await server.reload(text)) == ["reloaded"]
    assert app[app_keys.IN_FORCE].certificate_ends == 123
    monkeypatch.setattr(certificate, "expires_at", lambda _: 456)
    (tmp_path / "key.pem").write_text("no key")
    assert events(await server.reload(text)) == ["reload_refused"]
    assert app[app_keys.IN_FORCE].certificate_ends == 123, "handshakes go on with the former one"
