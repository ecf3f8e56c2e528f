"""Where the log goes if its reader stands still."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.logs.setup import MAX_BYTES, NonblockingStream
from tests.processes.test_service_manager import SQL
from tests.support.server import PATIENCE, ServerProcess, waiting

PIPE_BYTES = 65_536


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def numbered(numbers: range) -> list[str]:
    return [f"{number:08}{'x' * 91}\n" for number in numbers]


def test_what_a_reader_does_not_take_waits_and_comes_in_order(pipe: tuple[int, int]) -> None:
    with os.fdopen(os.dup(pipe[1]), "w") as stream:
        outlet = NonblockingStream(stream, lambda count: pytest.fail(f"{count} lines were lost"))
        lines = numbered(range(3000))
        for line in lines:
            outlet.write(line)
            outlet.flush()
        read = b""
        for _ in waiting("all lines"):
            read += os.read(pipe[0], PIPE_BYTES)
            if len(read) == len("".join(lines)):
                break
        assert read.decode() == "".join(lines)


@pytest.mark.system
def test_the_oldest_lines_go_and_how_many_is_told(pipe: tuple[int, int]) -> None:
    lost: list[int] = []
    with os.fdopen(os.dup(pipe[1]), "w") as stream:
        outlet = NonblockingStream(stream, lost.append)
        lines = numbered(range(3 * MAX_BYTES // 100))
        for line in lines:
            outlet.write(line)
            outlet.flush()
        assert lost == []
        read = b""
        for _ in waiting("the last line"):
            read += os.read(pipe[0], PIPE_BYTES)
            if read.endswith(lines[-1].encode()):
                break
        for _ in waiting("how many are lost"):
            if lost:
                break
    found = read.decode().splitlines(keepends=True)
    assert set(found) <= set(lines), "each line is whole"
    assert found == sorted(found)
    assert lost == [len(lines) - len(found)]
    assert len(read) >= MAX_BYTES


def test_a_reader_who_is_gone_is_nobodys_fault(pipe: tuple[int, int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        outlet = NonblockingStream(stream, lambda _: None)
        outlet.write("nobody reads this\n")
        outlet.flush()


@pytest.mark.system
async def test_a_server_goes_on_and_stops_while_nobody_reads_its_log(tmp_path: Path, pipe: tuple[int, int]) -> None:
    config = tmp_path / "conclave.toml"
    config.write_text(f"listen_port = 0\n{SQL}[admin]\nlisten_port = 0\n")
    command = [sys.executable, "-P", "-m", "conclave", "serve", "--config", str(config)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=pipe[1]) as server:
        try:
            url = listening(pipe[0])
            async with ClientSession() as http:
                for _ in range(PIPE_BYTES // 100):
                    async with http.get(f"{url}/nowhere") as response:
                        assert response.status == 404
            server.terminate()
            assert server.wait(PATIENCE) == 0
        finally:
            server.kill()


def listening(reading: int) -> str:
    text = b""
    for _ in waiting("the server to listen"):
        text += os.read(reading, PIPE_BYTES)
        if b'"listening"' in text:
            return text.partition(b'"url": "')[2].partition(b'"')[0].decode()
    raise AssertionError


def test_a_log_in_a_file_has_all_lines(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        assert server.stop()[0] == 0
        assert [event["event"] for event in server.events()][-2:] == ["stopping", "stopped"]
