"""What lies in the working directory is data: none of it runs."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.store.engine import sqlite
from tests.support.client import Client
from tests.support.sample import some
from tests.support.server import ServerProcess, waiting

SQL = '[cleanup]\nengine = "sql"\n'
MOVING = 'cleanup_interval = "1s"\n[archive]\nafter = "1s"\nmargin = "0"\n'

PYTHON_IN_JAVA = """
from conclave.clock import SystemClock
from conclave.config.load import load_config
from spark.environment import RunEnvironment
engine = RunEnvironment(load_config(), SystemClock())
engine.warm_up()
print(engine._spark.sparkContext.parallelize([1], 1).map(lambda number: number + 41).collect())
engine.close()
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder with modules of somebody else's, each of which tells that it ran."""
    for name in ("conclave", "spark", "pyspark", "py4j", "json", "signal", "struct", "ctypes"):
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit('{name} of somebody else')\n"
        if name in ("json", "signal", "struct"):
            (tmp_path / f"{name}.py").write_text(text)
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(text)
    return tmp_path


async def test_neither_server_nor_cleanup_runs_what_lies_in_the_working_directory(trapped: Path) -> None:
    """A sample has one of those who start Java, and a server without it."""
    works = some(("a server that moves", "a run by hand", "Python in Java"), 1, "who works in a folder with traps")
    await serve(trapped, MOVING if "a server that moves" in works else SQL)
    if "a run by hand" in works:
        run_by_hand(trapped)
    if "Python in Java" in works:
        run_python_in_java(trapped)
    assert not (trapped / "ran").exists()


async def serve(folder: Path, settings: str) -> None:
    ran = folder / "ran"
    with ServerProcess(folder, settings) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            await alice.send(group)
            for _ in waiting("a batch to move" if settings == MOVING else "a run"):
                with closing(sqlite.connect(folder / "conclave.db", readonly=True)) as connection:
                    assert not ran.exists(), ran.read_text()
                    table = "archive_parts" if settings == MOVING else "cleanup_runs"
                    if connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]:
                        break
            assert await alice.numbers(group) == [1], "served, from wherever it lies"
        server.stop()
    server.config.write_text("")


def run_by_hand(folder: Path) -> None:
    script = Path(sys.executable).with_name("conclave")
    done = subprocess.run([script, "cleanup", "run"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_python_in_java(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PYTHON_IN_JAVA], cwd=folder, capture_output=True, text=True)
    assert done.stdout == "[42]\n", done.stderr
