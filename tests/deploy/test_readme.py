"""The README in a fresh clone: each block of commands is run as it stands there, from top to bottom.

By `make trials` all of it is real, set-up and port too. Otherwise the packages are those of the tests, and the server
gets free ports.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.client.chat.test_terminal import Terminal
from tests.deploy.test_image import ROOT, tracked
from tests.support.client import PASSWORD
from tests.support.proxies import free_ports
from tests.support.trials import VARIABLE
from tests.test_docs import bodies

SET_UP_SECONDS = 900
"""A minute, but where packages come slowly or the machine is busy."""

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
ADDRESS = "http://localhost:8080"

OF_TESTERS = ("PYTHONPATH", "TEXTUAL_LOG", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "XDG_STATE_HOME", "CONCLAVE_CONFIG")
"""Variables that the tests, or who runs them, may have set."""

SAME_PACKAGES = """#!/bin/sh
PYTHONPATH={clone} exec {python} {arguments} "$@"
"""


class Newcomer:
    """Runs blocks of commands in a clone. ``port``: that of the server; None: the one that it has by itself."""

    def __init__(self, clone: Path, home: Path, port: int | None, stack: ExitStack) -> None:
        self.clone = clone
        self.home = home
        self._port = port
        self._stack = stack
        self.temporary = home.with_name("temporary")
        self.temporary.mkdir()
        self.server = self.terminal()
        self.chats: list[Terminal] = []

    @property
    def environment(self) -> dict[str, str]:
        """That of somebody who is new here."""
        kept = {name: value for name, value in os.environ.items() if name not in OF_TESTERS}
        return kept | {"HOME": str(self.home), "TMPDIR": str(self.temporary)}

    def terminal(self) -> Terminal:
        opened = self._stack.enter_context(closing(Terminal(self.clone)))
        opened.type(f"unset {' '.join(OF_TESTERS)}; export HOME={self.home} TMPDIR={self.temporary}; clear", "Enter")
        return opened

    def run(self, language: str, block: str) -> None:
        """Do what a reader does with a block."""
        match language:
            case "toml":
                with (self.clone / "conclave.toml").open("a") as settings:
                    settings.write(block)
                self.stop()
                self.serve()
            case "text":
                for line in block.splitlines():
                    self.chats[0].type(line, "Enter")
                self.chats[0].shows("hello", "deleted after 1 hour")
            case "bash":
                self.printed = self.ran(block.replace(ADDRESS, self.url))
            case "sh":
                for line in block.splitlines():
                    self.command(line.partition("  #")[0].strip())
            case _:
                raise AssertionError(f"nobody knows what to do with this: {block}")

    def command(self, line: str) -> None:
        if line == "make serve":
            self.serve()
        elif line.startswith("make chat"):
            self.chat(line)
        else:
            self.printed = self.ran(line)

    def ran(self, script: str) -> str:
        """Run a script to its end, and return what it prints. The first command that fails ends it."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=self.clone, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    @property
    def url(self) -> str:
        return f"http://localhost:{self._port}" if self._port else ADDRESS

    def serve(self) -> None:
        self._type_to_server("make serve", "Enter", until="listening")

    def stop(self) -> None:
        self._type_to_server("", "C-c", until="stopped")

    def _type_to_server(self, text: str, key: str, *, until: str) -> None:
        """Wait for a word that it may have said before."""
        before = self.server.screen(back=True).count(until)
        self.server.type(text, key)
        for _ in range(SET_UP_SECONDS):
            if self.server.screen(back=True).count(until) > before:
                return
            time.sleep(1)
        raise AssertionError(self.server.screen(back=True))

    def chat(self, line: str) -> None:
        opened = self.terminal()
        self.chats.append(opened)
        if self._port:
            line = f'make chat OPTIONS="{self.url} {line.partition("OPTIONS=")[2].strip(chr(34))}"'
        opened.type(line, "Enter")
        opened.shows("Create account")
        if "--user" not in line:
            opened.type("alice", "Enter")
        opened.type(PASSWORD, "Tab", "Tab", "Enter")
        opened.shows("Repeat")
        opened.type(PASSWORD, "Enter")
        opened.shows("You have no groups yet.")

    def talk(self, second_chat: str, invite: str, accept: str) -> None:
        """Have a second person come in, as the text below the lines says."""
        first = self.chats[0]
        self.chat(second_chat)
        second = self.chats[1]
        first.type(invite, "Enter")
        second.shows("book_club")
        second.type(accept, "Enter")
        second.shows("book_club", "deleted after 1 hour")
        first.type("are you there?", "Enter")
        second.shows("are you there?")
        second.type("I am", "Enter")
        first.shows("I am")

    def leave(self) -> None:
        for chat in self.chats:
            chat.type("/quit", "Enter")
            chat.hides("book_club")
        self.stop()


def sections() -> Iterator[tuple[str, str]]:
    """Yield the titles of the sections and what they say, in their order."""
    for each in re.split(r"^##+ ", README, flags=re.MULTILINE)[1:]:
        title, _, text = each.partition("\n")
        yield title, text


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    tracked()  # skips where there is no git
    if not shutil.which("tmux"):
        pytest.skip("no terminal to type into: tmux is not installed (Debian: apt install tmux)")
    clone, home, port = tmp_path / "clone", tmp_path / "home", None
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    home.mkdir()
    if os.environ.get(VARIABLE):
        with closing(socket.socket()) as tried:
            if tried.connect_ex(("127.0.0.1", 8080)) == 0:
                pytest.skip("something listens on port 8080, which the README's server wants")
    else:
        lend_packages(clone)
        port, admin_port = free_ports(2)
        (clone / "conclave.toml").write_text(f"listen_port = {port}\n[admin]\nlisten_port = {admin_port}\n")
    with ExitStack() as stack:
        yield Newcomer(clone, home, port, stack)


def lend_packages(clone: Path) -> None:
    """Have `make` find everything installed: what the tests themselves run with."""
    programs = clone / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("python", ""), ("conclave", "-P -m conclave")):
        (programs / name).write_text(SAME_PACKAGES.format(clone=clone, python=sys.executable, arguments=arguments))
        (programs / name).chmod(0o755)
    (clone / ".venv" / "runtime").touch()


def test_every_command_works_in_the_order_in_which_it_is_written(
    newcomer: Newcomer, capsys: pytest.CaptureFixture[str]
) -> None:
    took: list[str] = []
    for title, text in sections():
        began = time.monotonic()
        if title == "Remove everything":
            newcomer.leave()
        for block in BLOCK.finditer(text):
            newcomer.run(block[1], block[2])
        if title == "Talk in the terminal":
            newcomer.talk(*re.findall(r"`(make chat [^`]*|/invite \w+|/accept)`", text))
        if title == "A conversation by curl":
            assert bodies(newcomer.printed.splitlines()[-1]) == ["aGVsbG8="]
            follow_the_quickstart(newcomer)
        took += [f"{title}: {time.monotonic() - began:.0f} s"]
    assert "Remove everything" in {title for title, _ in sections()}
    left = ["git", "status", "--porcelain", "--ignored"]
    assert subprocess.run(left, cwd=newcomer.clone, capture_output=True, text=True).stdout == ""
    places = (newcomer.home, newcomer.temporary)
    assert [
        path for place in places for path in place.rglob("*") if path.is_file() and ".cache" not in path.parts
    ] == []
    with capsys.disabled():
        sys.stdout.write(f"\n{', '.join(took)}\n")


def follow_the_quickstart(newcomer: Newcomer) -> None:
    """The next page for whoever has come that far, with the same server."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    newcomer.run("bash", "\n".join(block for language, block in BLOCK.findall(page) if language == "bash"))
    assert bodies(newcomer.printed.splitlines()[-1]) == ["Y2xlbyBpcyBsYXRl"]
