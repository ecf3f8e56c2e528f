"""SIGHUP on a server process: nothing is lost, and a new certificate is served."""

import asyncio
import os
import signal
import ssl
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, TCPConnector

from tests.support.certificate import TLS, make_certificate
from tests.support.client import Client
from tests.support.server import ServerProcess, until

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'
STREAMS = 200


def events(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    return [event for event in server.events() if event.get("event") == name]


def hang_up(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGHUP)


async def reload(server: ServerProcess, event: str = "reloaded") -> dict[str, Any]:
    """Ask for a reload, and wait for what the log says of it."""
    known = len(events(server, event))
    hang_up(server)
    for _ in range(600):
        if len(found := events(server, event)) > known:
            return found[-1]
        await asyncio.sleep(0.1)
    raise AssertionError(server.events()[-3:])


def rewrite(server: ServerProcess, old: str, new: str) -> None:
    """Replace the configuration as an editor does."""
    text = server.config.read_text()
    assert old in text
    fresh = server.config.with_suffix(".new")
    fresh.write_text(text.replace(old, new))
    fresh.replace(server.config)


def shown(server: ServerProcess) -> str:
    """The certificate that a new handshake gets."""
    return ssl.get_server_certificate(("127.0.0.1", int(server.url.rpartition(":")[2])))


def of_another_kind(folder: Path) -> None:
    """Make a certificate with a key on a curve, in the place of the one that is there."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost")
    files = ("-days", "1", "-keyout", "key.pem", "-out", "cert.pem")
    subprocess.run(["openssl", "req", "-x509", *curve, *files], cwd=folder, check=True, capture_output=True)


class Audience:
    """Many streams of one user; none of them may end before ``close``."""

    def __init__(self, http: ClientSession, url: str, user: Client) -> None:
        self._http, self._url, self._user = http, url, user
        self.heard: Counter[int] = Counter()

    async def open(self) -> None:
        self._streams = [asyncio.create_task(self._listen(number)) for number in range(STREAMS)]
        await until(lambda: len(self.heard) == STREAMS)

    async def _listen(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {self._user.token}"}
        async with self._http.get(f"{self._url}/api/v1/events", headers=headers, timeout=None) as stream:
            assert stream.status == 200
            self.heard[number] = 0
            async for line in stream.content:
                self.heard[number] += line.startswith(b"data:")
        raise AssertionError("a stream has ended")

    async def close(self, messages: int) -> None:
        """Check that each stream hears of all messages, and that none has ended."""
        await until(lambda: set(self.heard.values()) == {messages})
        for stream in self._streams:
            stream.cancel()
        ended = await asyncio.gather(*self._streams, return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}


async def send_until(stop: asyncio.Event, sender: Client, reader: Client, group: str) -> list[int]:
    """Send and fetch one message after the other; return their numbers."""
    sent: list[int] = []
    while not stop.is_set():
        sent.append(await sender.send(group))
        assert await reader.numbers(group, sent[-1] - 1) == sent[-1:]
    return sent


async def test_a_storm_of_reloads_loses_no_connection_and_no_request(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with ServerProcess(tmp_path, f'message_retention = "1d"\n{TLS}{SQL}') as server:
        async with ClientSession(connector=TCPConnector(ssl=False, limit=0)) as http:
            alice = await Client.register(http, server.url, "alice")
            bob = await Client.register(http, server.url, "bob")
            group = await alice.create_group("g")
            await bob.join(group)
            audience, stop = Audience(http, server.url, bob), asyncio.Event()
            await audience.open()
            sending = asyncio.create_task(send_until(stop, alice, bob, group))
            first = shown(server)
            make_certificate(tmp_path)
            await reload(server)
            assert shown(server) == (tmp_path / "cert.pem").read_text() != first
            of_another_kind(tmp_path)
            await reload(server)
            assert shown(server) == (tmp_path / "cert.pem").read_text(), "a key of another kind than the former one"
            for number in range(100):
                rewrite(server, f'"{1 + number % 2}d"', f'"{2 - number % 2}d"')
                hang_up(server)
                await asyncio.sleep(0.01)
            await reload(server)
            stop.set()
            sent = await sending
            assert sent == list(range(1, len(sent) + 1)), "each was answered, once"
            await audience.close(len(sent))
        assert len(events(server, "reloaded")) <= 103
        assert not events(server, "reload_refused") + events(server, "reload_failed")
        assert [event for event in events(server, "request") if event["status"] >= 400] == []
        assert server.stop()[0] == 0


async def test_a_pair_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with ServerProcess(tmp_path, TLS + SQL) as server:
        first = shown(server)
        key = (tmp_path / "key.pem").read_text()
        make_certificate(tmp_path)
        (tmp_path / "key.pem").write_text(key)
        refused = await reload(server, "reload_refused")
        assert "does not match" in refused["fault"]
        assert shown(server) == first


async def test_the_level_of_the_log_changes_and_other_settings_are_named(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'cleanup_interval = "1s"\n{SQL}[log]\nlevel = "info"\n') as server:
        server.wait_for("cleanup_run")
        [worker] = server.descendants()
        assert not events(server, "cleanup_began")
        rewrite(server, 'level = "info"', 'level = "debug"')
        rewrite(server, '"1s"', '"1000y"')
        await reload(server)
        assert server.wait_for("needs_restart")["settings"] == ["cleanup_interval"]
        server.wait_for("cleanup_began")
        assert server.descendants() == {worker}, "the same one, with the same interval"


def test_a_server_under_nohup_reloads_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL, within=("nohup",)) as server:
        hang_up(server)
        server.wait_for("reloaded")
        assert server.stop()[0] == 0


def test_a_request_to_reload_that_comes_while_the_server_starts_is_not_its_end(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        server.wait_for("reloaded")


HANGS_UP = """
import os, signal
from conclave.cli.main import LazyCommand, main
load = LazyCommand.load
LazyCommand.load = lambda command: (os.kill(os.getpid(), signal.SIGHUP), load(command))[1]
main()
"""
"""The command, which gets SIGHUP as soon as it begins to load the server."""


def test_a_signal_does_not_end_a_server_that_is_still_being_loaded(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL, command=("-c", HANGS_UP)) as server:
        assert server.stop()[0] == 0


def test_signals_until_the_last_moment_leave_a_stop_clean(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.process.send_signal(signal.SIGTERM)
        while server.process.poll() is None:
            hang_up(server)
        assert server.process.returncode == 0
        assert server.events()[-1]["event"] == "stopped"
