"""A fresh clone, and what the README says to type, word for word: set up, serve, and the first message between two."""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.client.chat.test_terminal import Terminal
from tests.deploy.test_image import ROOT, tracked
from tests.support.client import PASSWORD
from tests.support.trials import asked_for

SET_UP_SECONDS = 900
"""A minute, but where packages come slowly or the machine is busy."""

README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@contextmanager
def terminal(clone: Path, state: Path) -> Iterator[Terminal]:
    with closing(Terminal(clone)) as opened:
        # A tester's shell has what the tests set, and a newcomer's has not.
        opened.type(f"unset PYTHONPATH TEXTUAL_LOG; export XDG_STATE_HOME={state}; clear", "Enter")
        yield opened


def test_the_first_message_between_two_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked_for()
    tracked()
    if not shutil.which("tmux"):
        pytest.skip("no terminal to type into: tmux is not installed (Debian: apt install tmux)")
    with closing(socket.socket()) as port:
        if port.connect_ex(("127.0.0.1", 8080)) == 0:
            pytest.skip("something listens on port 8080, which the README's server wants")
    [serve] = re.findall(r"^(make serve)\b", section("Set up"), flags=re.MULTILINE)
    [chat] = re.findall(r"^(make chat)\b", section("Talk"), flags=re.MULTILINE)
    [lines] = re.findall(r"^```text\n(.*?)```", section("Talk"), flags=re.MULTILINE | re.DOTALL)
    [second_chat, invite, accept] = re.findall(r"`(make chat [^`]*|/invite \w+|/accept)`", section("Talk"))

    began = time.monotonic()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    with (
        terminal(clone, tmp_path) as first,
        terminal(clone, tmp_path) as second,
        terminal(clone, tmp_path) as third,
    ):
        first.type(serve, "Enter")
        for _ in range(SET_UP_SECONDS):
            if "listening" in first.screen(back=True):
                break
            time.sleep(1)
        else:
            raise AssertionError(first.screen(back=True))
        is_served = time.monotonic()
        try:
            second.type(chat, "Enter")
            signs_up(second, "alice")
            for line in lines.splitlines():
                second.type(line, "Enter")
            second.shows("hello", "gone after 1 hour")
            third.type(second_chat, "Enter")
            signs_up(third, "")
            second.type(invite, "Enter")
            third.shows("book_club")
            third.type(accept, "Enter")
            third.shows("book_club", "gone after 1 hour")
            second.type("are you there?", "Enter")
            third.shows("are you there?")
            third.type("I am", "Enter")
            second.shows("I am")
            took = time.monotonic()
        finally:
            first.type("", "C-c")
            first.shows("stopped")
    with capsys.disabled():
        sys.stdout.write(f"\nserved after {is_served - began:.0f} s, talked after {took - began:.0f} s\n")


def signs_up(opened: Terminal, name: str) -> None:
    """Fill in the form; the name is there already where the command had it."""
    opened.shows("Create account")
    if name:
        opened.type(name, "Enter")
    opened.type(PASSWORD, "Tab", "Tab", "Enter")
    opened.shows("once more")
    opened.type(PASSWORD, "Enter")
    opened.shows("You are in no group yet.")
