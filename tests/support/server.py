"""A server in a process of its own."""

import asyncio
import contextlib
import ctypes
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")

PATIENCE = 180.0
"""Seconds. On a busy machine Spark alone may take 60 to start."""

STOP_SECONDS = 20.0
"""A stop takes 5 seconds at most, and more on a busy machine. One that waits for clients takes a minute at least."""

USUAL_SIGNALS = ("env", "--default-signal")
"""Begins a command that gets no ignored signals, as one of a terminal: what starts the tests may ignore some."""


class ServerProcess:
    """`conclave serve` on a free port of loopback; its log lines are kept."""

    def __init__(
        self,
        folder: Path,
        settings: str = "",
        env: dict[str, str] | None = None,
        address: str = "127.0.0.1",
        command: tuple[str, ...] = ("-m", "conclave"),
        within: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        admin: str = "",
        file: tuple[Path, str] | None = None,
    ) -> None:
        """``within``: a command that ends by executing what follows on it. ``options``: more of `conclave serve`.

        ``admin``: more of its table. ``file``: another file of settings, and all that is in it.
        """
        self.folder = folder
        self.config, text = file or (
            folder / "conclave.toml",
            f'listen_address = "{address}"\nlisten_port = 0\n{settings}\n[admin]\nlisten_port = 0\n{admin}\n',
        )
        self.config.write_text(text)
        self._log = folder / "server.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-P", *command, "serve", "--config", self.config, *options],
                cwd=folder,
                env=os.environ | (env or {}),
                stderr=log,
            )

    def __enter__(self) -> Self:
        self.url = self.wait_for("listening")["url"]
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._log.read_text(errors="replace").splitlines():
            if '"level": "error"' in line:  # where the test has failed, they are shown with it
                sys.stdout.write(f"{line}\n")
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # Or the disk would fill with those of all tests. No deeper: Java may be removing its files.
        for reserve in (*self.folder.glob("*.reserve"), *self.folder.glob("*/*.reserve")):
            reserve.unlink(missing_ok=True)  # Links show one file twice.

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        found = []
        for line in self._log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for a log line, and return it."""
        for _ in waiting(lambda: f"the event {event}: {self._log.read_text()}"):
            for each in self.events():
                if each.get("event") == event:
                    return each
            assert self.process.poll() is None, self._log.read_text()
        raise AssertionError

    def stop(self) -> tuple[int, float]:
        """Ask it to stop; return its exit status and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        return status, time.monotonic() - began

    def cpu_seconds(self) -> float:
        """What it has worked so far."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def descendants(self) -> set[int]:
        """The ids of the worker and whatever it started."""
        return descendants(self.process.pid)


def waiting(what: str | Callable[[], str]) -> Iterator[None]:
    """Come round ten times a second, until PATIENCE is at its end. ``what``: is told then; if called, as it is then."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)
    raise AssertionError(f"waited in vain for {what if isinstance(what, str) else what()}")


@overload
async def until(holds: Callable[[], Awaitable[T]]) -> T: ...
@overload
async def until(holds: Callable[[], T]) -> T: ...
async def until(holds: Callable[[], Any]) -> Any:
    """Come round a hundred times a second until ``holds`` returns what counts as true, and return that.

    What it returns may have to be awaited.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)


def descendants(pid: int) -> set[int]:
    """The ids of what a process has started, and what that has started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def links(pid: int) -> Iterator[str]:
    """What a process has open, as ``socket:[INODE]``, ``pipe:[INODE]`` or a path; nothing if it has ended."""
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(each.readlink())


def conclave(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "conclave", *arguments],
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def capless(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python to its end that may only write what its modes allow, even where the tests run as root."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=_give_up_root,
    )


def _give_up_root() -> None:
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER):
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


_LIBC = ctypes.CDLL(None)
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER = 24, 1, 2, 3
