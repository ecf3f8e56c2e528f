"""Whoever follows docs/operations/install.md reaches a server: commands, files and settings of its first section."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml
from aiohttp import ClientSession

from conclave.cli.main import main
from conclave.config.load import parse_config
from tests.deploy.test_units import UNITS
from tests.support import confined
from tests.support.certificate import make_certificate
from tests.support.client import PASSWORD, Client
from tests.support.proxies import free_ports, nginx_command, write_nginx
from tests.support.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "/opt/conclave/.venv/bin/conclave"

OF_THE_SYSTEM = {
    *("/etc/conclave", "/etc/conclave/config.toml", "/etc/systemd/system/", "/var/www/html", "/srv/backups"),
    *("/etc/nginx/conf.d/conclave.conf", "/etc/nginx/nginx.conf", "/etc/caddy/Caddyfile", "/etc/prometheus/"),
    *("/etc/prometheus/prometheus.yml", "/etc/prometheus/conclave.rules.yml", "/usr/sbin/nologin"),
    *("/var/lib/conclave/conclave.db", "/var/lib/conclave-vault", "/srv/conclave-vault-copy"),
    *("/var/lib/conclave", "/srv/backups/conclave", "/opt/conclave"),
}
"""What the system has, or the section makes."""


def section() -> str:
    page = (ROOT / "docs" / "operations" / "install.md").read_text(encoding="utf-8")
    return page.partition("\n## From nothing to a protected server\n")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]


def ours() -> list[list[str]]:
    """The arguments of all calls of the `conclave` command."""
    return [words[words.index(COMMAND) + 1 :] for words in commands() if COMMAND in words]


def test_every_file_of_ours_is_there() -> None:
    named = {word.rstrip(":;,.") for word in re.findall(r"(?<![\w.])/(?:opt|etc|srv|var|usr)/[\w./-]+", section())}
    files = {name for name in named if name.startswith("/opt/conclave/") and name != COMMAND}
    assert len(files) >= 6
    assert [name for name in files if not (ROOT / name.removeprefix("/opt/conclave/")).is_file()] == []
    assert named - files - {COMMAND} - OF_THE_SYSTEM == set()
    assert [name for name in re.findall(r"`(deploy/\S+)`", section()) if not (ROOT / name).is_file()] == []


def test_every_command_of_ours_is_one() -> None:
    assert len(ours()) >= 5
    for words in ours():
        command: click.Command = main
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        # Options that are not known, and arguments that lack, raise an error. Files are not looked for.
        command = deepcopy(command)
        for parameter in command.params:
            parameter.type = click.STRING if isinstance(parameter.type, click.Path) else parameter.type
        command.make_context("conclave", words, resilient_parsing=False)


def test_every_command_is_one_that_is_known_here() -> None:
    known = {
        "apt",
        "make",
        "useradd",
        "install",
        "chown",
        "chmod",
        "runuser",
        "cp",
        "systemctl",
        "certbot",
        "nginx",
        "sed",
    }
    said = [words for words in commands() if "=" not in words[0]]
    assert {words[0] for words in said} == known | {"promtool"}
    # What asks would take the next line that is pasted as its answer.
    assert [words for words in said if words[0] == "apt" and "--yes" not in words] == []
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [words[-1] for words in commands() if words[0] == "make"] == ["setup"]
    assert "setup" in targets
    units = {word for words in commands() if words[0] == "systemctl" for word in words if word.startswith("conclave")}
    assert units == {unit.name for unit in UNITS.iterdir()}


def test_the_units_write_where_the_section_makes_folders() -> None:
    made = {word for words in commands() if words[:2] == ["install", "-d"] for word in words if word.startswith("/")}
    for unit in UNITS.glob("*.service"):
        found = confined.settings(unit)
        written = {f"/var/lib/{name}" for name in found["StateDirectory"][0].split()}
        written |= {folder.removeprefix("-") for line in found.get("ReadWritePaths", []) for folder in line.split()}
        assert written <= made
    [useradd] = [words for words in commands() if words[0] == "useradd"]
    assert {confined.settings(unit)["User"][0] for unit in UNITS.glob("*.service")} == {useradd[-1]}


@dataclass
class Machine:
    """A folder that stands for the machine."""

    root: Path
    server: ServerProcess

    def run(self, words: list[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command of ours, with the paths of this machine."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "conclave", *(placed(word, self.root) for word in words)],
            cwd=self.root / "var/lib/conclave",
            capture_output=True,
            text=True,
        )


def placed(text: str, root: Path) -> str:
    return re.sub(r"/(?=(etc|var|srv)/)", f"{root}/", text)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the section was followed, with the server started by its settings."""
    root = tmp_path_factory.mktemp("machine")
    for folder in ("etc/conclave", "var/lib/conclave", "var/lib/conclave-vault", "srv/backups/conclave"):
        (root / folder).mkdir(parents=True, mode=0o700)
    [settings] = blocks("toml")
    client_port, admin_port = free_ports(2)
    settings = settings.replace("listen_port = 8080", f"listen_port = {client_port}")
    settings = settings.replace("listen_port = 9091", f"listen_port = {admin_port}")
    # The engine is not what this is about, and Spark takes long to start.
    settings = placed(settings, root) + '\n[cleanup]\nengine = "sql"\ndisk_reserve = "1m"\n'
    config = root / "etc/conclave/config.toml"
    with ServerProcess(root / "var/lib/conclave", file=(config, settings)) as server:
        server.wait_for("cleanup_run")
        yield Machine(root, server)


def nightly() -> list[str]:
    """The arguments of the unit's backup."""
    return confined.settings(UNITS / "conclave-backup.service")["ExecStart"][0].split()[1:]


def test_our_commands_work_in_their_order(machine: Machine) -> None:
    said: dict[str, str] = {}
    for words in ours():
        if words[:2] == ["backup", "list"]:
            made = machine.run(nightly())
            assert made.returncode == 0, made.stderr
        ran = machine.run(words)
        said[" ".join(words[:2])] = ran.stdout
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
    assert "1 " in said["backup list"] or "Z" in said["backup list"]
    assert len(said["invite-token new"].strip()) >= 16


async def test_the_backups_forget_what_was_erased_and_the_vault_is_where_the_section_says(machine: Machine) -> None:
    [settings], [proof] = blocks("toml"), [words for words in ours() if "--copies" in words]
    [invite] = [words for words in ours() if words[0] == "invite-token"]
    vault = parse_config(settings, "install.md").vault
    places = [vault.path or "", *vault.copies]
    assert {f"`{each}`" for each in places} <= {*re.findall(r"`[^`\n]+`", section())}
    async with ClientSession() as http:
        alice, token = Client(http, machine.server.url), machine.run(invite).stdout.strip()
        await alice.post("/register", username="alice", password=PASSWORD, registration_token=token)
        await alice.login("alice")
        group = await alice.create_group("g")
        number = await alice.send(group, b"soon erased")
        assert machine.run(nightly()).returncode == 0
        await alice.take_back(group, number)
    config = "/etc/conclave/config.toml"
    assert machine.run(["cleanup", "run", "--config", config]).returncode == 0
    told = json.loads(machine.run([*proof, "--json"]).stdout)
    [copies] = [part["looked_at"] for part in told["parts"] if part["name"] == "copies"]
    assert (told["verdict"], copies["of these erased today"]) == ("clean", 1)
    assert [each for each in places if not Path(placed(f"{each}/keys", machine.root)).is_file()] == []
    names = {path.name for path in (machine.root / "srv/backups/conclave").glob("20*/**/*")}
    assert names == {"database.db", "manifest.json"}, "no keys"


def test_the_settings_listen_on_this_machine_only(machine: Machine) -> None:
    [listening] = [event for event in machine.server.events() if event.get("event") == "listening"]
    assert listening["url"].startswith("http://127.0.0.1:")
    assert listening["admin_url"].startswith("http://127.0.0.1:")


def test_prometheus_is_told_of_the_port_and_of_our_rules() -> None:
    [settings], [prometheus] = blocks("toml"), [yaml.safe_load(block) for block in blocks("yaml")]
    [port] = re.findall(r"\[admin\]\nlisten_port = (\d+)", settings)
    assert prometheus["scrape_configs"][0]["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    rules = ROOT / "deploy" / "prometheus" / Path(prometheus["rule_files"][0]).name
    assert yaml.safe_load(rules.read_text())["groups"]
    if shutil.which("promtool"):
        assert subprocess.run(["promtool", "check", "rules", rules], capture_output=True).returncode == 0


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    if not shutil.which("nginx"):
        pytest.skip("needs nginx")
    make_certificate(tmp_path)
    write_nginx(tmp_path, lambda text: text, *free_ports(2))
    ran = subprocess.run([*nginx_command(tmp_path), "-t"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "[warn]" not in ran.stderr + (tmp_path / "log").read_text()


def test_caddy_accepts_its_configuration(tmp_path: Path) -> None:
    if not shutil.which("caddy"):
        pytest.skip("needs caddy")
    file = ROOT / "deploy" / "caddy" / "Caddyfile"
    ran = subprocess.run(["caddy", "adapt", "--config", file], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "well formatted"
