"""The chat in a real terminal, once from end to end: tmux is the terminal, and tells what stands on it."""

import asyncio
import contextlib
import os
import pty
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.client import Client, PlaintextCodec, ResourceError
from conclave.client.membership import MembershipManager
from tests.support.chatting import SETTINGS, signed_up
from tests.support.client import PASSWORD
from tests.support.proxies import free_ports
from tests.support.server import PATIENCE, ServerProcess, alive, conclave, waiting

pytestmark = pytest.mark.system


ROOT = Path(__file__).parents[3]
SAYING = "the heron stands in the reeds"


class Terminal:
    """A terminal of 80 columns and 24 rows, with a shell in it."""

    def __init__(self, folder: Path, *, within: str = "") -> None:
        """``within``: what is done in a place of its own before the shell starts."""
        self._name = f"conclave-{uuid.uuid4().hex[:8]}"
        self._folder = folder
        variables = {
            "PYTHONPATH": str(ROOT),
            "PS1": "$ ",
            "LANG": "C.UTF-8",
            "TEXTUAL_LOG": str(folder / "textual.log"),
        }
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), "sh"]
        if within:
            own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
            command = [*own, "sh", "-c", f'{within} && exec "$@"', "sh", *command]
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-s", "it", "-x", "80", "-y", "24", "-c", str(folder), *command
        )

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def start(self, *arguments: str) -> int:
        """Start the chat, and return its process id."""
        self.type(f"{sys.executable} -P -m conclave chat --home {self._folder}/home {' '.join(arguments)}", "Enter")
        for _ in waiting("the chat to start"):
            if found := self.processes():
                return found[0]
        raise AssertionError

    def processes(self) -> list[int]:
        """The chats that run in it."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if f"{self._folder}/home".encode() in command and b"-m\0conclave\0chat" in command:
                    found.append(int(entry.name))
        return found

    def seen_from_within(self, path: Path) -> Path:
        """What the shell in it sees at a path."""
        shell = self._tmux("display-message", "-p", "-t", "it", "#{pane_pid}").strip()
        return Path(f"/proc/{shell}/root{path}")

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then press keys by tmux's names."""
        self._tmux("send-keys", "-t", "it", "-l", text)
        if keys:
            self._tmux("send-keys", "-t", "it", *keys)

    def sends(self, *data: int) -> None:
        """Hand over bytes as a terminal does, whatever they are."""
        self._tmux("send-keys", "-t", "it", "-H", *(f"{each:02x}" for each in data))

    def screen(self, *, back: bool = False, with_colours: bool = False) -> str:
        """What stands on it; ``back``: and what was scrolled out of it; ``with_colours``: and how it is told."""
        more = (*(("-S", "-") if back else ()), *(("-e",) if with_colours else ()))
        return self._tmux("capture-pane", "-p", "-t", "it", *more)

    def shows(self, *texts: str) -> None:
        for _ in waiting(lambda: f"{texts} in {self.screen()}"):
            if all(each in self.screen() for each in texts):
                return

    def hides(self, text: str) -> None:
        for _ in waiting(lambda: f"no {text} in {self.screen()}"):
            if text not in self.screen():
                return

    def ended(self, process: int) -> None:
        """Wait until the chat is over, and the shell asks again."""
        for _ in waiting(lambda: f"the end of {process}: {self.screen()}"):
            if not alive(process):
                break
        self.type("echo back in the 'shell'", "Enter")  # what is typed is shown, too: perhaps before the shell asks
        self.shows("back in the shell")

    def keeps_output(self) -> Path:
        """Keep from now on what the program writes to the terminal; return the file."""
        raw = self._folder / "output"
        raw.touch()
        self._tmux("pipe-pane", "-t", "it", f"cat >> {raw}")
        return raw

    def close(self) -> None:
        with contextlib.suppress(AssertionError):  # it may be closed already
            self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if not shutil.which("tmux"):
        pytest.skip("no terminal to look at: tmux is not installed (Debian: apt install tmux)")
    opened = Terminal(tmp_path)
    try:
        yield opened
    finally:
        opened.close()


def test_from_a_fresh_home_to_quit_and_back_again(server: ServerProcess, terminal: Terminal, tmp_path: Path) -> None:
    first = terminal.start(server.url)
    terminal.shows("Password", "Create account", server.url)
    terminal.type("heron", "Enter")
    terminal.type(PASSWORD, "Tab", "Tab", "Enter")
    terminal.shows("Repeat password")
    terminal.type(PASSWORD, "Enter")
    terminal.shows("You have no groups yet.", "heron at", "online")
    terminal.type("/new reeds", "Enter")
    terminal.shows("kept forever", "you are an admin")
    terminal.type(SAYING, "Enter")
    terminal.shows(SAYING, "you")
    terminal.type("/expire 1h", "Enter")
    terminal.shows("deleted after 1 hour", "●", SAYING)
    assert PASSWORD.encode() not in Path(f"/proc/{first}/cmdline").read_bytes()
    terminal.type("", "C-c")
    terminal.shows(SAYING)
    assert alive(first), "Ctrl+C copies, or says how to leave; it loses nothing"
    terminal.type("/quit", "Enter")
    terminal.ended(first)
    for text in (terminal.screen(), terminal.screen(back=True)):
        assert SAYING not in text
        assert "reeds" not in text

    second = terminal.start()
    terminal.shows("heron at", "online", SAYING, "deleted after 1 hour")
    os.kill(second, signal.SIGKILL)
    for _ in waiting("its end"):
        if not alive(second):
            break
    with closing(Terminal(tmp_path)) as another:
        third = another.start()
        another.shows("heron at", "online", SAYING)
        another.type("/quit", "Enter")
        another.ended(third)

    files = list((tmp_path / "home").rglob("*"))
    assert {stat.S_IMODE(each.stat().st_mode) for each in files if each.is_file()} == {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in [tmp_path / "home", *files] if each.is_dir()} == {0o700}
    log = tmp_path / "textual.log"
    logged = log.read_text() if log.exists() else ""
    token = next((tmp_path / "home").rglob("session")).read_text().split('"token": "')[1][:64]
    for secret in (SAYING, PASSWORD, token):
        assert secret not in logged
    assert "key='h'" not in logged, "nor what was typed, key by key"


def test_a_terminal_that_closes_ends_it_and_loses_nothing(
    server: ServerProcess, terminal: Terminal, tmp_path: Path
) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "closer"))
    process = terminal.start()
    terminal.shows("You have no groups yet.")
    terminal.type("/new closing", "Enter")
    terminal.shows("you are an admin")
    before = stored(server)
    terminal.type(SAYING, "Enter")
    terminal.shows(SAYING)
    for _ in waiting("the text to be sent: until then it is a pending, in memory only"):
        if stored(server) > before:
            break
    terminal.close()  # which hangs up
    for _ in waiting("the end of the chat"):
        if not alive(process):
            break
    with closing(Terminal(tmp_path)) as again:
        process = again.start()
        again.shows("closer at", "online", SAYING)
        again.hides("sending")  # or it asks before it ends: the answer to it may have been lost with the terminal
        again.type("/quit", "Enter")
        again.ended(process)


def test_bytes_that_are_no_text_are_shown_as_such_and_end_nothing(
    server: ServerProcess, terminal: Terminal, tmp_path: Path
) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "latin"))
    process = terminal.start("--plaintext")
    terminal.shows("You have no groups yet.")
    terminal.type("/new latin", "Enter")
    terminal.shows("Created latin")
    terminal.type("a caf")
    terminal.sends(0xE9)
    terminal.type(" noir")
    terminal.shows("a caf\N{REPLACEMENT CHARACTER} noir")
    terminal.sends(0x1B, ord("["), ord("M"), 0x20, 0xE9, 0xC3)  # a report of the mouse in bytes
    terminal.type(", please")
    terminal.shows("a caf\N{REPLACEMENT CHARACTER} noir, please")
    terminal.type("", "Enter")
    terminal.shows("you  ")
    terminal.hides("sending")  # or it asks before it ends
    terminal.type("/quit", "Enter")
    terminal.ended(process)


def test_a_terminal_that_is_gone_ends_a_chat_that_ignores_the_hangup(server: ServerProcess, tmp_path: Path) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "gone"))
    command = [sys.executable, "-P", "-m", "conclave", "chat", "--home", str(tmp_path / "home"), "--plaintext"]
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execve(command[0], command, {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)})
    try:
        shown = b""
        while b"gone at" not in shown:
            shown += os.read(terminal, 65536)
        os.close(terminal)
        for _ in waiting("the end of the chat"):
            if os.waitpid(process, os.WNOHANG)[0]:
                return
    except AssertionError:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise


def test_on_a_full_disk_the_chat_stays_and_forgets(server: ServerProcess, tmp_path: Path) -> None:
    if not shutil.which("tmux") or not shutil.which("unshare"):
        pytest.skip("no terminal, or no disk of its own")
    (tmp_path / "home").mkdir()
    with closing(Terminal(tmp_path, within=f"mount -t tmpfs -o size=8m tmpfs {tmp_path}/home")) as terminal:
        terminal.shows("$")
        home = terminal.seen_from_within(tmp_path / "home")
        asyncio.run(signed_up(home, server.url, "full"))

        def kept(text: str) -> list[str]:
            return [each.name for each in home.rglob("*") if each.is_file() and text.encode() in each.read_bytes()]

        process = terminal.start()
        terminal.shows("You have no groups yet.")
        terminal.type("/new full", "Enter")
        terminal.shows("Created full")
        terminal.type("/expire 12s", "Enter")
        terminal.shows("deleted after 12 seconds")
        terminal.type("goes soon", "Enter")
        terminal.shows("goes soon")
        for _ in waiting("the text to be stored"):
            if "history" in kept("goes soon"):
                break
        with contextlib.suppress(OSError), (home / "fill").open("wb", buffering=0) as fill:
            while fill.write(bytes(4096)):
                pass
        terminal.hides("goes soon")
        for _ in waiting("it to be erased"):
            if not kept("goes soon"):
                break
        terminal.type("typed on a full disk", "Enter")
        terminal.shows("cannot save messages: the disk is full", "typed on a full disk")
        assert alive(process)
        (home / "fill").unlink()
        terminal.shows("full at", "online", "typed on a full disk")
        terminal.hides("waiting")
        terminal.type("/quit", "Enter")
        terminal.ended(process)


def test_what_is_typed_and_what_waits_survive_a_kill_and_are_in_no_file_as_they_are(
    terminal: Terminal, tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", tmp_path / "server"
    folder.mkdir()
    text = f'listen_address = "127.0.0.1"\nlisten_port = {free_ports(1)[0]}\n{SETTINGS}\n[admin]\nlisten_port = 0\n'
    file = folder / "conclave.toml", text
    with ServerProcess(folder, file=file) as server:
        asyncio.run(signed_up(home, server.url, "typist"))
        process = terminal.start()
        terminal.shows("You have no groups yet.")
        terminal.type("/new drafts", "Enter")
        terminal.shows("Created drafts")
        server.stop()
        terminal.shows("no connection")
        terminal.type("waits to be sent", "Enter")
        terminal.type("half a sentence")
        terminal.shows("waits to be sent", "half a sentence")
        time.sleep(2)  # what is typed is kept once a second
        os.kill(process, signal.SIGKILL)
        for _ in waiting("its end"):
            if not alive(process):
                break
    for path in home.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert b"waits to be sent" not in data
        assert b"half a sentence" not in data
    with ServerProcess(folder, file=file) as server, closing(Terminal(tmp_path)) as another:
        process = another.start()
        another.shows("online", "waits to be sent", "half a sentence")
        for _ in waiting("the text to be stored"):
            if stored(server) == 1:
                break
        another.type("", "C-c")
        another.hides("half a sentence")
        another.type("/quit", "Enter")
        another.ended(process)


async def write_to(server: ServerProcess, group: str, *texts: str) -> None:
    """Somebody else comes into a group and writes there, without encryption."""
    async with Client(server.url) as client:
        with contextlib.suppress(ResourceError):
            await client.register("bittern", PASSWORD)
        await client.login("bittern", PASSWORD)
        [found] = await client.public_groups(group)
        with contextlib.suppress(ResourceError):
            await MembershipManager(client, PlaintextCodec()).join(found.group_id)
        for text in texts:
            await client.send(found.group_id, text.encode())


def test_it_rings_the_bell_and_tells_no_text(server: ServerProcess, terminal: Terminal, tmp_path: Path) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "grebe"))
    process = terminal.start("--plaintext")
    terminal.shows("You have no groups yet.")
    terminal.type("/new marsh public", "Enter")
    terminal.shows("kept forever")
    terminal.type("/new pond", "Enter")
    terminal.shows("Created pond")
    raw = terminal.keeps_output()
    asyncio.run(write_to(server, "marsh", "the reeds are high"))
    terminal.shows("marsh", "∞ 1")
    for _ in waiting("a bell"):
        if b"\x07" in raw.read_bytes():
            break
    assert b"conclave: new message" in raw.read_bytes()
    assert b"the reeds" not in raw.read_bytes()
    terminal.type("/quit", "Enter")
    terminal.ended(process)


def test_links_a_search_an_answer_and_ctrl_c(server: ServerProcess, terminal: Terminal, tmp_path: Path) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "egret"))
    process = terminal.start("--plaintext")
    terminal.shows("You have no groups yet.")
    terminal.type("/new fen public", "Enter")
    terminal.shows("kept forever")
    raw = terminal.keeps_output()
    address = f"https://example.org/{'reeds/' * 20}map?of=the&fen"
    asyncio.run(write_to(server, "fen", f"is this the way? {address}\x1b]8;;https://evil.example\x1b\\"))
    terminal.shows("is this the way?", "https://example.org/reeds")
    links = re.compile(rb"\x1b\]8;id=[0-9]+;([^\x1b]*)\x1b")
    for _ in waiting("a link on each row"):
        if len(told := links.findall(raw.read_bytes())) >= 3:
            break
    assert {*told} == {address.encode()}, "the whole of it, and nothing that is in the text"
    terminal.type("/search way", "Enter")
    terminal.shows("way in fen: 1", "Enter opens")
    terminal.type("", "Enter")
    terminal.shows("▸ is this the way?")
    terminal.type("/reply it is", "Enter")
    terminal.shows("> bittern: is this the way?", "it is")
    terminal.type("half a line", "C-c")
    terminal.hides("half a line")
    terminal.type("", "C-c")
    terminal.shows("Ctrl+C again to quit")
    terminal.type("", "C-c")
    terminal.ended(process)


def test_names_as_people_have_them_mentions_muting_and_unread_to_zero(
    server: ServerProcess, terminal: Terminal, tmp_path: Path
) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "teal"))
    process = terminal.start("--plaintext")
    terminal.shows("You have no groups yet.")
    terminal.type("/new Smith v. Jones, 2026 public", "Enter")
    terminal.shows("Created Smith v. Jones, 2026", "Smith_v_Jones_2026")
    terminal.type("/new nest", "Enter")
    terminal.shows("Created nest")
    asyncio.run(write_to(server, "Smith_v_Jones_2026", *(f"line {number}" for number in range(38)), "@teal, see this"))
    terminal.shows("∞ @1 39")
    terminal.type("/mute Smith v. Jones, 2026 2h", "Enter")
    terminal.shows("∞ ⊘ @1 39")
    terminal.type("/unmute Smith v. Jones, 2026", "Enter")
    terminal.hides("⊘")
    terminal.type("/go Smith v. Jones, 2026", "Enter")
    terminal.shows("line 0", "─ new ─")
    for _ in waiting(lambda: f"a number that falls in {terminal.screen()}"):
        if (left := re.search(r"∞ @1 ([0-9]+)", terminal.screen())) and int(left[1]) < 39:
            break
    terminal.type("", "Escape")
    terminal.hides("@1")
    assert not re.search(r"∞ [0-9@]", terminal.screen()), "nothing is unread"
    terminal.type("", "C-End")
    terminal.shows("@teal, see this")
    marked = re.search(r"\x1b\[48;[0-9;]+m@teal, see this\x1b\[0m", terminal.screen(with_colours=True))
    assert marked, "on a ground of its own"
    terminal.type("/go nest", "Enter")
    terminal.shows("1 member")
    asyncio.run(write_to(server, "Smith_v_Jones_2026", "one more", "and another"))
    terminal.shows("∞ 2")
    terminal.type("/read all", "Enter")
    terminal.hides("∞ 2")
    terminal.type("/quit", "Enter")
    terminal.ended(process)


def test_what_was_said_is_taken_back(server: ServerProcess, terminal: Terminal, tmp_path: Path) -> None:
    asyncio.run(signed_up(tmp_path / "home", server.url, "smew"))
    process = terminal.start("--plaintext")
    terminal.shows("You have no groups yet.")
    terminal.type("/new ponds public", "Enter")
    terminal.shows("Created ponds")
    asyncio.run(write_to(server, "ponds", "it freezes"))
    for text in ("first word", "second word", "third word"):
        terminal.type(text, "Enter")
        terminal.shows(text)
    for _ in waiting("all of them to be stored"):
        if asyncio.run(said_in(server, "ponds")) == ["it freezes", "first word", "second word", "third word"]:
            break
    terminal.type("/undo", "Enter")
    for _ in waiting(lambda: f"no third word in {terminal.screen()}"):
        screen = terminal.screen()
        if "third word" not in screen:
            break
        if "on its way still" in screen:  # the chat hears later than the server knows; the line is in the field again
            terminal.type("", "Enter")
    terminal.type("/delete first", "Enter")
    terminal.shows("Take back this message?", "undone")
    terminal.type("", "Left", "Enter")
    terminal.hides("Take back this message?")  # what is typed before that is typed into it
    terminal.hides("first word")
    terminal.type("/purge 1h", "Enter")
    terminal.shows("only the sender")
    terminal.shows("it freezes", "second word")
    assert asyncio.run(said_in(server, "ponds")) == ["it freezes", "second word"]
    terminal.type("", "C-c")
    terminal.type("/quit", "Enter")
    terminal.ended(process)


async def said_in(server: ServerProcess, group: str) -> list[str]:
    """What the other one is served of a group, without commits."""
    async with Client(server.url) as client:
        await client.login("bittern", PASSWORD)
        [found] = [each for each in await client.groups() if each.group_name == group]
        page = PlaintextCodec().decode(found.group_id, await client.fetch(found.group_id))
        return [each.text for each in page if each.text]


def stored(server: ServerProcess) -> int:
    """How many messages the server has."""
    with closing(sqlite3.connect(server.folder / "conclave.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])


def test_without_a_terminal_it_says_so_in_a_line(tmp_path: Path) -> None:
    done = conclave("chat", "--home", tmp_path / "home", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "needs a terminal" in done.stderr
    assert not (tmp_path / "home").exists()
