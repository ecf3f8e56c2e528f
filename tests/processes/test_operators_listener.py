"""The operators' listener of a server process: its token, its metrics, and what it says while the server stops."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from conclave.server.client_port.admission import MAX_OPERATORS
from tests.support.client import Client
from tests.support.scrape import read
from tests.support.server import PATIENCE, ServerProcess, conclave, waiting

TOKEN = "0123456789abcdef" * 2
SQL = '[cleanup]\nengine = "sql"\n'
PATIENT = "from conclave.server import run; run.SHUTDOWN_SECONDS = 60.0; from conclave.__main__ import main; main()"
"""The server, which waits for what is under way until it is told what it waits for."""


def refused(tmp_path: Path, admin: str) -> str:
    """Start a server that is not to start; return its one line."""
    config = tmp_path / "conclave.toml"
    config.write_text(f"listen_port = 0\n{SQL}[admin]\nlisten_port = 0\n{admin}\n")
    ran = conclave("serve", "--config", config, cwd=tmp_path)
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert not (tmp_path / "conclave.db").exists(), "nothing is made for a server that does not start"
    return line


def test_no_token_no_listener_beyond_loopback(tmp_path: Path) -> None:
    line = refused(tmp_path, 'listen_address = "0.0.0.0"')
    assert line.startswith("conclave: ")
    assert 'admin.listen_address: "0.0.0.0" is not loopback' in line


@pytest.mark.parametrize(
    ("held", "why"), [(None, "No such file or directory"), ("hunter2 hunter2", "must have 32 to 1024")]
)
def test_a_token_file_that_is_none_stops_the_start(tmp_path: Path, held: str | None, why: str) -> None:
    if held:
        (tmp_path / "token").write_text(held)
    line = refused(tmp_path, f'token_file = "{tmp_path}/token"')
    assert line.startswith(f"conclave: admin.token_file: {tmp_path}/token: ")
    assert why in line
    assert "hunter2" not in line


def test_a_token_is_not_waited_for_at_a_pipe(tmp_path: Path) -> None:
    """A reload would read it again, and a stop wait for that."""
    os.mkfifo(tmp_path / "token")
    line = refused(tmp_path, f'token_file = "{tmp_path}/token"')
    assert line.endswith("/token: is not a regular file: name one that can be read again")


@asynccontextmanager
async def asking(server: ServerProcess) -> AsyncIterator["Asking"]:
    async with ClientSession() as http:
        yield Asking(http, server.wait_for("listening")["admin_url"])


class Asking:
    """An operator."""

    def __init__(self, http: ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path, headers=headers) as response:
            text = await response.text()
            assert "Traceback" not in text
            return response.status, json.loads(text) if response.content_type == "application/json" else text


async def test_a_server_that_others_reach_asks_for_its_token(tmp_path: Path) -> None:
    """And nothing shows it, the log neither. 127.1 is loopback, but not as the configuration knows it."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    away = f'listen_address = "127.1"\ntoken_file = "{tmp_path}/token"'
    with ServerProcess(tmp_path, SQL, admin=away) as server:
        async with asking(server) as operator:
            assert (await operator.get("/metrics"))[0] == 401
            assert await operator.get("/healthz") in ((200, {"status": "ok"}), (503, {"status": "degraded"}))
            status, told = await operator.get("/metrics", Authorization=f"Bearer {TOKEN}")
            assert status == 200
            assert "conclave_build_info" in told
            assert TOKEN not in told
        assert TOKEN not in (tmp_path / "server.log").read_text()


async def test_silent_connections_of_strangers_take_few_files_and_no_operators_place(tmp_path: Path) -> None:
    """They need no token. Clients and the store have to have the files that are left."""
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        port = int(server.wait_for("listening")["admin_url"].rpartition(":")[2])
        open_files = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(open_files.iterdir()))
        async with AsyncExitStack() as held:
            for _ in range(4 * MAX_OPERATORS):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                held.callback(writer.close)
            async with asking(server) as operator:
                assert (await operator.get("/readyz"))[0] == 200, "it comes to its turn after all of them"
                for _ in waiting("those that had to make room to be closed"):
                    if len(list(open_files.iterdir())) <= before + MAX_OPERATORS:
                        break


async def test_after_a_run_its_metrics_and_those_of_the_processes_are_told(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL + 'keep_warm = "1y"\n') as server:
        server.wait_for("cleanup_run")
        async with asking(server) as operator:
            await Client.register(operator.http, server.url, "alice")
            status, text = await operator.get("/metrics")
            assert status == 200
            found = read(text)
            assert found["conclave_cleanup_runs_total"] == {("ok", "everything"): 1}
            assert found["conclave_cleanup_interval_seconds"] == {("everything",): 3600}
            assert found["conclave_cleanup_last_success_timestamp_seconds"]["everything",] > 1_700_000_000
            assert found["conclave_cleanup_resident_memory_bytes"]["worker",] > 10_000_000
            assert found.one("process_resident_memory_bytes") > 10_000_000
            assert 10 < found.one("process_open_fds") < found.one("process_max_fds")
            assert found.one("conclave_cleanup_worker_ends_total") == 0


async def test_from_the_signal_on_the_server_is_not_ready_and_goes_on_telling_why(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL, command=("-c", PATIENT)) as server:
        server.wait_for("cleanup_run")
        async with asking(server) as operator:
            assert await operator.get("/readyz") == (200, {"status": "ready"})
            # A request that is not finished: the server waits for the rest of it.
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                b"Content-Length: 99\r\nContent-Type: application/json\r\n\r\n{"
            )
            assert b" 100 " in await reader.readline(), "it has begun"
            server.process.terminate()
            await asyncio.to_thread(server.wait_for, "stopping")
            answers = []
            try:
                while True:
                    ready, scraped = await asyncio.gather(operator.get("/readyz"), operator.get("/metrics"))
                    answers.append(ready)
                    assert scraped[0] == 200
                    assert read(scraped[1]).one("conclave_ready") == 0
                    if len(answers) == 20:
                        writer.close()
            except (ClientError, ConnectionError):
                pass  # it has ended, or is about to
            assert answers
            assert {json.dumps(each) for each in answers} == {'[503, {"status": "stopping"}]'}
            writer.close()
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        assert not [each for each in server.events() if "exception" in each or each["event"] == "request_failed"]
