"""The image built and run as docs/operations/install.md says: confined, with data, cleanup and a backup.

CONCLAVE_IMAGE_BASE names the base where it is another; ``made`` is one that mmdebstrap makes, which `make image` takes.
CONCLAVE_IMAGE_BUILD and CONCLAVE_IMAGE_RUN have options for what only this machine knows, such as its proxy.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.deploy.test_image import OCI, ROOT, of
from tests.support.client import Client
from tests.support.containers import MADE, Containers, containers, make_root
from tests.support.proxies import free_ports
from tests.support.server import waiting

NAME = "conclave-test"


def documented() -> list[str]:
    """Return the words of the docs' `podman run`."""
    page = (ROOT / "docs" / "operations" / "install.md").read_text(encoding="utf-8").replace("\\\n", " ")
    [line] = re.findall(r"^podman run .*$", page, flags=re.MULTILINE)
    return shlex.split(line)[1:]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    """What runs containers, with the image built."""
    found = containers()
    base = os.environ.get("CONCLAVE_IMAGE_BASE", of("ARG")[0].removeprefix("BASE="))
    if base == MADE:
        base = make_root(found, tmp_path_factory.mktemp("root"))
    elif not found.has(base) and found.run("pull", base).returncode:
        pytest.skip(
            f"needs the image {base}, which is not here and cannot be fetched: CONCLAVE_IMAGE_BASE=made builds one"
        )
    kind = ["--format=docker"] if found.program == "podman" else []
    file = f"--file={OCI / 'Containerfile'}"
    found.must("build", *kind, *found.to_build, file, f"--build-arg=BASE={base}", f"--tag={NAME}", str(ROOT))
    return found


def inside(engine: Containers, script: str) -> str:
    """Run a script in the image, as its user, and return what it says."""
    return engine.must("run", "--rm", "--network=none", *engine.to_run, "--entrypoint=sh", NAME, "-c", script)


def test_the_image_has_a_user_a_health_check_and_nothing_that_builds(engine: Containers) -> None:
    [told] = json.loads(engine.must("image", "inspect", NAME))
    assert told["Config"]["User"] == "10001:10001"
    assert json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])[-1] in json.dumps(told)
    assert {each.partition("=")[0] for each in told["Config"]["Env"]} >= {"PATH", "CONCLAVE_CONFIG"}
    assert inside(engine, "id -u; ls -A /opt/conclave /etc/conclave").split("\n")[:6] == [
        *("10001", "/etc/conclave:", "config.toml", "", "/opt/conclave:", ".venv"),
    ]
    assert inside(engine, "for each in pip pip3 gcc cc make curl wget git; do command -v $each; done; true") == ""
    packages = inside(engine, "ls /opt/conclave/.venv/lib/python3.*/site-packages").split()
    assert "conclave" in packages
    assert {"pip", "setuptools", "wheel", "tests", "bench", "pytest"} & {*packages} == set()
    caches = (
        r"find / -xdev -size +0 \( -name .cache -o -name pip.conf -o -name '*.deb' -o -path '/var/lib/apt/lists/*' \)"
    )
    assert inside(engine, f"{caches} 2>/dev/null; true") == ""
    assert inside(engine, r"find /opt/conclave /etc/conclave \( -user conclave -o -perm -0002 \) ! -type l") == ""


class Container:
    """A container that runs as the docs say, with volumes of its own."""

    def __init__(self, engine: Containers, port: int, name: str) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{port}"
        self.name = name
        self._port = port

    def arguments(self, *further: str) -> list[str]:
        """Return the words of the docs' command, with other names and another port."""
        words = documented()
        assert words[-1] == "conclave"
        changed = {
            "127.0.0.1:8080:8080": f"127.0.0.1:{self._port}:8080",
            "data:/var/lib/conclave": f"{self.name}-data:/var/lib/conclave",
            "vault:/var/lib/conclave-vault": f"{self.name}-vault:/var/lib/conclave-vault",
        }
        words = [changed.pop(word, word) for word in words[:-1]]
        assert not changed
        words[words.index("--name") + 1] = self.name
        return [*words, *self.engine.to_run, *further, NAME]

    def conclave(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command within."""
        return self.engine.run("exec", self.name, "conclave", *words)

    def wait(self) -> None:
        """Wait until its health check says that it serves."""
        check = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
        for _ in waiting(self.name):
            if self.engine.run("exec", self.name, *check).returncode == 0:
                return

    def log(self) -> list[dict[str, object]]:
        ran = self.engine.run("logs", self.name)
        return [json.loads(line) for line in (ran.stdout + ran.stderr).splitlines()]


@contextmanager
def container(engine: Containers, *further: str) -> Iterator[Container]:
    [port] = free_ports(1)
    made = Container(engine, port, f"{NAME}-{port}")
    try:
        engine.must(*made.arguments(*further))
        yield made
    finally:
        engine.run("rm", "--force", "--volumes", made.name)
        engine.run("volume", "rm", f"{made.name}-data", f"{made.name}-vault")


async def test_it_serves_cleans_up_and_keeps_its_data(engine: Containers) -> None:
    """All by the docs' command, and Spark, Java and the jars from the image alone."""
    with container(engine) as running, container(engine, "--tmpfs=/backups:mode=1777") as other:
        running.wait()
        async with ClientSession() as http:
            alice = await Client.register(http, running.url, "alice")
            group = await alice.create_group("g")
            await alice.send(group, b"hello")
            cleaned = running.conclave("cleanup", "run")
            assert cleaned.returncode == 0, cleaned.stderr
            assert "Cleanup run (spark): ok" in cleaned.stdout
            doctor = running.conclave("doctor")
            assert (doctor.returncode, "wrong" in doctor.stdout) == (0, False), doctor.stdout
            assert "health:     ok" in running.conclave("status").stdout
            second = engine.run(*_named(running, "second"))
            assert "another server is running on this database" in second.stdout + second.stderr
            engine.must("stop", running.name)
            assert engine.must("inspect", "--format={{.State.ExitCode}}", running.name).strip() == "0"
            assert running.log()[-1]["event"] == "stopped"
            engine.must("start", running.name)
            running.wait()
            assert [message.body for message in await alice.fetch(group)] == [b"hello"]
        other.wait()
        made = other.conclave("backup", "/backups/all")
        assert made.returncode == 0, made.stderr
        assert "no such" not in other.conclave("backup", "list", "/backups/all").stderr
        assert "the keys were copied to /backups/all/keys" in made.stdout


def _named(running: Container, suffix: str) -> list[str]:
    """Return the words that run another container on the same volumes, in the foreground."""
    words = [word for word in running.arguments() if word != "--detach"]
    words[words.index("--name") + 1] = f"{running.name}-{suffix}"
    place = words.index("--publish")
    return [words[0], "--rm", *words[1:place], *words[place + 2 :]]


def test_nothing_is_written_but_to_its_volumes(engine: Containers) -> None:
    with container(engine) as running:
        running.wait()
        tried = "for each in /x /etc/conclave/x /opt/conclave/x; do touch $each 2>/dev/null && echo $each; done; true"
        assert engine.must("exec", running.name, "sh", "-c", tried) == ""
        rights = engine.must("exec", running.name, "grep", "-E", "^(Uid|CapEff):", "/proc/1/status").split()
        assert (rights[1], rights[-1].strip("0")) == ("10001", "")
        assert "Max core file size        0 " in engine.must("exec", running.name, "cat", "/proc/self/limits")


def test_a_folder_in_place_of_a_volume_that_is_not_its_own_is_told(engine: Containers, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    mount = f"--volume={tmp_path}:/var/lib/conclave"
    ran = engine.run("run", "--rm", "--read-only", "--tmpfs=/tmp", "--cap-drop=all", *engine.to_run, mount, NAME)
    assert ran.returncode == 1
    [line] = (ran.stdout + ran.stderr).splitlines()[-1:]
    assert re.fullmatch(r"conclave: /var/lib/conclave/\S+: Permission denied: the server runs as user 10001: .*", line)


async def test_settings_by_a_mount_metrics_and_cleanup_without_java(engine: Containers, tmp_path: Path) -> None:
    settings, token, [port] = tmp_path / "config.toml", "t" * 32, free_ports(1)
    told = (
        (OCI / "config.toml")
        .read_text()
        .replace('[admin]\nlisten_address = "127.0.0.1"', '[admin]\nlisten_address = "0.0.0.0"')
    )
    settings.write_text(f'{told}token = "{token}"\n\n[cleanup]\nengine = "sql"\n')
    settings.chmod(0o644)
    published = f"--publish=127.0.0.1:{port}:9090"
    proxy = "--env=http_proxy=http://127.0.0.1:1"
    with container(engine, f"--volume={settings}:/etc/conclave/config.toml:ro", published, proxy) as running:
        running.wait()
        assert "Cleanup run (sql): ok" in running.conclave("cleanup", "run").stdout
        async with ClientSession() as http:
            url = f"http://127.0.0.1:{port}/metrics"
            async with http.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
                assert (answer.status, "conclave_ready 1.0" in await answer.text()) == (200, True)
            async with http.get(url) as answer:
                assert answer.status == 401
