"""A reload: the certificate and the level of the log are read again, and nothing else."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from conclave.config.load import load_config
from conclave.config.settings import Config
from conclave.health.parts import Health, HealthPart
from conclave.server import reload
from conclave.server.reload import Reloader, changed_settings
from conclave.server.supervise import Supervisor
from conclave.server.tls import Tls, load_context
from conclave.system import certificate
from conclave.system.notify import ServiceManager
from tests.conftest import Running
from tests.support.certificate import make_certificate

FIXED = 'message_retention = "10d"\n'


class Worker(Supervisor):
    """Stands for the worker: it only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Config] = []

    def set_config(self, config: Config) -> None:
        self.told.append(config)


class Server:
    """What a reload of a server changes, and its file."""

    def __init__(self, path: Path, text: str = "") -> None:
        self.path = path
        self.text = FIXED + text
        path.write_text(self.text)
        self.config = load_config(path)
        self.health, self.worker, self.again = Health(), Worker(), asyncio.Event()
        tls = Tls(context) if (context := load_context(self.config)) else None
        self.reloader = Reloader(self.config, self.health, self.worker, tls, path, self.again, ServiceManager())

    async def reload(self, text: str | None = None) -> list[dict[str, Any]]:
        """Reload, with ``text`` after what the file has if it is given; return what is logged."""
        if text is not None:
            self.path.write_text(self.text + text)
        with structlog.testing.capture_logs() as lines:
            await self.reloader.reload()
        return [dict(line) for line in lines]


@pytest.fixture(autouse=True)
def levels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The levels that the log of this process was given: with others, what is logged could not be looked at."""
    given: list[str] = []
    monkeypatch.setattr(reload, "configure_logging", lambda config: given.append(config.level))
    return given


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "conclave.toml")


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


async def test_the_level_of_the_log_changes_here_and_in_the_worker(server: Server, levels: list[str]) -> None:
    [line] = await server.reload('log.level = "error"')
    assert (line["event"], line["logs_from"], line["certificate"]) == ("reloaded", "error", "none")
    assert levels == ["error"]
    assert [each.log.level for each in server.worker.told] == ["error"]
    assert changed_settings(server.worker.told[0], server.config) == ["log.level"]
    assert events(await server.reload()) == ["reloaded"]
    assert len(server.worker.told) == 1


async def test_every_other_setting_is_named_and_takes_a_restart(server: Server, levels: list[str]) -> None:
    text = 'auth_header = "X-Token"\nlog.level = "debug"\nlog.requests = "none"\nlimits.login_failures = 7\n'
    server.text = 'message_retention = "5d"\n'
    lines = await server.reload(text)
    assert events(lines) == ["reloaded", "needs_restart"]
    assert lines[1]["settings"] == ["message_retention", "auth_header", "limits.login_failures", "log.requests"]
    assert levels == ["debug"]
    assert server.health.faults == {}


async def test_a_faulty_file_changes_nothing_and_each_fault_is_logged_and_shows_in_health(server: Server) -> None:
    lines = await server.reload('registration_enabled = "no"\ncolour = 1\nlog.level = "error"')
    assert [(line["event"], line["log_level"]) for line in lines] == [("reload_refused", "error")] * 2
    assert "colour" in server.health.faults[HealthPart.CONFIGURATION]
    assert server.worker.told == []
    server.path.unlink()
    [line] = await server.reload()
    assert (line["event"], "cannot be read" in line["fault"]) == ("reload_refused", True)
    assert events(await server.reload("")) == ["reloaded"]
    assert server.health.faults == {}


async def test_a_pipe_is_not_read_a_second_time(server: Server) -> None:
    """As the shell makes one of <(...): a second reader would wait for a writer, or find nothing."""
    server.path.unlink()
    os.mkfifo(server.path)
    [line] = await server.reload()
    assert (line["event"], "cannot be read again" in line["fault"]) == ("reload_refused", True)


async def test_however_often_it_is_asked_one_reload_is_under_way_and_one_waits(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()
    begun = 0

    async def wait() -> None:
        nonlocal begun
        begun += 1
        await goes_on.wait()

    monkeypatch.setattr(server.reloader, "reload", wait)
    async with server.reloader:
        for _ in range(100):
            server.again.set()
            await asyncio.sleep(0)
        assert begun == 1
        goes_on.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert begun == 2


async def test_a_certificate_that_was_read_again_is_known_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path)
    text = f'tls_cert_path = "{tmp_path}/cert.pem"\ntls_key_path = "{tmp_path}/key.pem"\n'
    server = Server(tmp_path / "conclave.toml", text)
    monkeypatch.setattr(certificate, "expires_at", lambda _: 123)
    [line] = await server.reload()
    assert (line["event"], line["certificate"]) == ("reloaded", "read again")
    assert server.health.certificate_ends == 123
    monkeypatch.setattr(certificate, "expires_at", lambda _: 456)
    (tmp_path / "key.pem").write_text("no key")
    assert events(await server.reload('log.level = "error"')) == ["reload_refused"]
    assert server.health.certificate_ends == 123, "handshakes go on with the former one"
    assert server.worker.told == [], "the level is as it was, too"


async def test_the_policy_stays_until_a_restart(running: Running, tmp_path: Path) -> None:
    server = Server(tmp_path / "conclave.toml", f'database_path = "{running.config.database}"\n')
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group)
    running.clock.advance(50)
    server.text = server.text.replace("10d", "40s")
    assert "message_retention" in (await server.reload(""))[-1]["settings"]
    assert await alice.numbers(group) == [1]
    stored = await running.query("SELECT policy_settings FROM server_state")
    assert '"message_retention": -1' in stored[0][0], "other processes compare theirs with it"


def test_a_setting_that_differs_is_named_with_its_table() -> None:
    other = replace(Config(), cleanup_interval=5, archive=replace(Config().archive, after=7))
    assert changed_settings(Config(), other) == ["cleanup_interval", "archive.after"]
