"""SIGHUP on a server process: nothing is lost, a new certificate is served, the worker goes by new settings."""

import asyncio
import os
import signal
import sqlite3
import ssl
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from tests.support.certificate import TLS, make_certificate
from tests.support.client import Client
from tests.support.server import ServerProcess, until, waiting

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
            rewrite(server, '"1d"', '"3d"')
            hang_up(server)
            await until(lambda: any("3d" in str(each["changed"]) for each in events(server, "reloaded")))
            stop.set()
            sent = await sending
            assert sent == list(range(1, len(sent) + 1)), "each was answered, once"
            await audience.close(len(sent))
            told = await alice.get(f"/groups/{group}/retention")
            assert told["effective_expiry_seconds"] == 3 * 86_400
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
        rewrite(server, TLS, f"registration_enabled = false\n{TLS}")
        refused = await reload(server, "reload_refused")
        assert "is not the key of" in refused["fault"]
        assert shown(server) == first
        async with ClientSession(connector=TCPConnector(ssl=False)) as http:
            assert await Client.register(http, server.url, "alice"), "registration is as it was"


def test_the_worker_goes_by_a_new_interval(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'cleanup_interval = "1000y"\n{SQL}') as server:
        server.wait_for("cleanup_run")
        [worker] = server.descendants()
        rewrite(server, '"1000y"', '"1s"')
        hang_up(server)
        for _ in waiting("runs at the new interval"):
            if len(events(server, "cleanup_run")) >= 4:
                break
        assert server.descendants() == {worker}, "the same one"
        rewrite(server, '"1s"', '"1000y"')
        hang_up(server)
        for _ in waiting("the reload"):
            if len(events(server, "reloaded")) == 2:
                break


def test_runs_after_a_change_of_the_policy_go_by_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'cleanup_interval = "1s"\n{SQL}') as server:
        server.wait_for("cleanup_run")
        for days in range(1, 6):
            text = server.config.read_text().partition("message_retention")
            server.config.write_text(
                f'message_retention = "{days}d"\n' + (text[0] if days == 1 else text[2].partition("\n")[2])
            )
            hang_up(server)
            for _ in waiting("the reload and a run after it"):
                names = [event["event"] for event in server.events()]
                if names.count("reloaded") == days and "cleanup_run" in names[::-1][: names[::-1].index("reloaded")]:
                    break
        assert {event["error"] for event in events(server, "cleanup_run")} == {""}
        assert not events(server, "cleanup_unavailable")
        assert len(events(server, "policy_changed")) == 5


def test_a_server_under_nohup_reloads_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL, within=("nohup",)) as server:
        hang_up(server)
        server.wait_for("reloaded")
        assert server.stop()[0] == 0


@pytest.mark.parametrize("requests", ["all", "errors", "none"])
async def test_what_the_log_has_of_requests_changes_at_once(tmp_path: Path, requests: str) -> None:
    with ServerProcess(tmp_path, f'{SQL}[log]\nrequests = "all"\n') as server:
        async with ClientSession() as http:
            await http.get(f"{server.url}/healthz")
            assert (server.wait_for("request")["status"]) == 200
            rewrite(server, 'requests = "all"', f'requests = "{requests}"')
            await reload(server)
            known = len(events(server, "request"))
            await http.get(f"{server.url}/healthz")
            await http.get(f"{server.url}/api/v1/me")
            expected = {"all": [200, 401], "errors": [401], "none": []}[requests]
            await until(lambda: len(events(server, "request")[known:]) >= len(expected))
            await asyncio.sleep(0.3)
            assert [event["status"] for event in events(server, "request")[known:]] == expected


def test_a_request_to_reload_that_comes_while_the_server_starts_is_not_its_end(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        server.wait_for("reloaded")


HANGS_UP = """
import os, signal
from conclave.cli.main import Family, main
load = Family.load
Family.load = lambda command: (os.kill(os.getpid(), signal.SIGHUP), load(command))[1]
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


def test_the_next_run_goes_by_settings_that_change_no_interval(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'cleanup_interval = "1s"\nretention.keep_audit = "1y"\n{SQL}') as server:
        server.wait_for("cleanup_run")
        with closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
            entry = (int(time.time()) - 1000,)
            connection.execute("INSERT INTO audit (at, actor, action) VALUES (?, 'server', 'settings_changed')", entry)
            connection.commit()
            known = len(events(server, "cleanup_run"))
            for _ in waiting("a run that keeps the entry"):
                if len(events(server, "cleanup_run")) > known + 1:
                    break
            count = "SELECT count(*) FROM audit"
            assert connection.execute(count).fetchone()[0] == 1
            rewrite(server, '"1y"', '"500s"')
            hang_up(server)
            for _ in waiting("a run that lets go of it"):
                if not connection.execute(count).fetchone()[0]:
                    break
