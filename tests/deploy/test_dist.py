"""Wheel and sources are the same each time they are built, and what is installed from the wheel works by itself."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from conclave import __version__
from tests.client.chat.test_terminal import Terminal
from tests.deploy.test_image import ROOT, tracked
from tests.support.proxies import free_ports
from tests.support.server import USUAL_SIGNALS, waiting
from tests.support.trials import asked_for

WHEEL = f"conclave_messaging-{__version__}-py3-none-any.whl"
SOURCES = f"conclave_messaging-{__version__}.tar.gz"


def build(
    target: Path, checkout: Path = ROOT, words: Sequence[str] = (), **environment: str
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(checkout / "scripts" / "dist"), str(target), *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tracked()  # skips where there is no git
    target = tmp_path_factory.mktemp("dist")
    made = build(target)
    assert made.returncode == 0, made.stderr
    return target


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation for the chat, of the wheel and what it needs, in the versions that are pinned here."""
    return install(built, "client", tmp_path_factory.mktemp("installed"))


def install(built: Path, extra: str, folder: Path) -> Path:
    """Install the wheel with an extra into a new environment, and return that."""
    pinned = re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / "requirements" / "runtime.txt").read_text(), re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(pinned))
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(folder / "constraints.txt"), f"{built / WHEEL}[{extra}]"], check=True)
    return folder / "venv"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if not shutil.which("tmux"):
        pytest.skip("no terminal to type into: tmux is not installed (Debian: apt install tmux)")
    with closing(Terminal(tmp_path)) as opened:
        yield opened


def said(command: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([command, *arguments], capture_output=True, text=True, cwd=command.parent)


def test_the_same_commit_gives_the_same_bytes_whoever_builds_it_and_when(built: Path, tmp_path: Path) -> None:
    """Under another time zone, from another folder, and while its checkout has files that are not committed."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    (clone / "conclave" / "stray.py").write_text("raise SystemExit\n")
    again = build(tmp_path / "again", clone, TZ="Asia/Tokyo", LC_ALL="C")
    assert again.returncode == 0, again.stderr
    for name in (WHEEL, SOURCES):
        assert (built / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
        assert name in again.stdout
    with tarfile.open(built / SOURCES) as sources:
        names = {member.name.partition("/")[2] for member in sources.getmembers()}
    assert {"Makefile", "requirements/runtime.txt", "deploy/systemd/conclave.service", "PKG-INFO"} <= names


def test_without_a_program_that_builds_images_only_the_files_are_built(tmp_path: Path) -> None:
    tracked()
    only_git = tmp_path / "bin"
    only_git.mkdir()
    (only_git / "git").symlink_to(shutil.which("git") or "")
    made = build(tmp_path / "dist", ROOT, PATH=str(only_git), words=("--image",))
    assert (made.returncode, made.stderr) == (0, "no image: neither podman nor docker runs here\n")
    assert {each.name for each in (tmp_path / "dist").iterdir()} == {WHEEL, SOURCES}


def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    tracked()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    subprocess.run(["git", "-C", clone, "tag", "v99.0.0"], check=True)
    refused = build(tmp_path / "dist", clone)
    assert refused.returncode == 1
    assert "the tag v99.0.0" in refused.stderr
    subprocess.run(["git", "-C", clone, "tag", "--delete", "v99.0.0"], check=True, capture_output=True)
    subprocess.run(["git", "-C", clone, "tag", f"v{__version__}"], check=True)
    assert build(tmp_path / "dist", clone).returncode == 0


def test_an_installation_for_the_chat_has_command_manual_and_nothing_of_the_server(installed: Path) -> None:
    conclave = installed / "bin" / "conclave"
    assert said(conclave, "--version").stdout == f"conclave, version {__version__}\n"
    assert "--in-memory" in said(conclave, "chat", "--help").stdout
    refused = said(conclave, "serve")
    assert refused.returncode == 1
    assert f"pip install '{WHEEL}[server]'" in refused.stderr
    pages = {path.name for path in (installed / "share/man/man1").iterdir()}
    assert {"conclave.1", "conclave-chat.1", "conclave-serve.1"} <= pages
    listed = subprocess.run([installed / "bin/pip", "list", "--format=freeze"], capture_output=True, text=True).stdout
    assert {"pyspark", "pyarrow", "aiosqlite"} & {line.partition("==")[0] for line in listed.splitlines()} == set()


def test_each_page_of_the_manual_is_shown(installed: Path) -> None:
    if not shutil.which("man"):
        pytest.skip("needs man")
    pages = sorted((installed / "share/man/man1").iterdir())
    assert len(pages) >= len(list((ROOT / "docs/man").iterdir())) > 1
    manual = ["man", "-M", str(installed / "share/man"), "--warnings"]
    environment = os.environ | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    for page in pages:
        shown = subprocess.run([*manual, page.stem], env=environment, capture_output=True, text=True)
        assert (shown.returncode, shown.stderr) == (0, ""), page
        assert shown.stdout.startswith(page.stem.upper())
        assert "DESCRIPTION" in shown.stdout


STARTS = {
    "bash": ("bash --norc --noprofile", "source <(conclave completion bash)"),
    "zsh": ("zsh -f", "fpath+=(~/.zfunc); autoload -U compinit; compinit -u"),
    "fish": ("fish", "function fish_prompt; echo -n '$ '; end; function fish_greeting; end"),
}


@pytest.mark.parametrize("shell", STARTS)
def test_the_shell_completes_commands_and_options(
    installed: Path, terminal: Terminal, tmp_path: Path, shell: str
) -> None:
    """By the lines that the help has to paste; bash's want a package that this machine may lack."""
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    starts, settings = STARTS[shell]
    home = tmp_path / "home"
    home.mkdir()
    terminal.type(f"export HOME={home} PATH={installed}/bin:$PATH PS1='$ '; unset XDG_CONFIG_HOME; {starts}", "Enter")
    if shell != "bash":
        helped = said(installed / "bin" / "conclave", "completion", "--help").stdout
        for line in helped.partition(f"  {shell}")[2].splitlines()[1:3]:
            terminal.type(line.strip(), "Enter")
    terminal.type(f"{settings}; clear; echo re''ady", "Enter")
    terminal.shows("ready\n$")
    terminal.type("conclave comple", "Tab")
    terminal.shows("$ conclave completion")
    terminal.type("", "C-u")
    terminal.type("conclave chat --in-m", "Tab")
    terminal.shows("$ conclave chat --in-memory")


def test_an_installation_for_a_server_serves_and_cleans_up_with_an_archive(built: Path, tmp_path: Path) -> None:
    """As docs/operations/install.md has it without a checkout."""
    asked_for()
    installed = install(built, "server", tmp_path)
    conclave = installed / "bin" / "conclave"
    fetched = said(conclave, "archive", "fetch-jars")
    assert fetched.returncode == 0, fetched.stderr
    client_port, admin_port = free_ports(2)
    config = tmp_path / "conclave.toml"
    config.write_text(
        f'listen_address = "127.0.0.1"\nlisten_port = {client_port}\n[admin]\nlisten_port = {admin_port}\n'
        '[cleanup]\ndisk_reserve = "0"\n[archive]\nafter = "1d"\n'
    )
    with subprocess.Popen([*USUAL_SIGNALS, conclave, "serve", "--config", config], cwd=tmp_path) as server:
        try:
            for _ in waiting("the server's first run"):
                if "health:     ok" in said(conclave, "status", "--config", str(config)).stdout:
                    break
            ran = said(conclave, "cleanup", "run", "--config", str(config))
            assert "Cleanup run (spark): ok" in ran.stdout, ran.stderr
        finally:
            server.terminate()
    assert server.returncode == 0
