"""Podman or Docker as a test finds it, and a base image of Debian that is made here, where no registry is reached."""

import os
import resource
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MADE = "made"
"""As the name of the base: a Debian root that mmdebstrap makes of packages."""

_ROOT = "localhost/conclave-debian:12"
_SOURCES = [
    "deb http://deb.debian.org/debian bookworm main",
    "deb http://deb.debian.org/debian bookworm-updates main",
    "deb http://deb.debian.org/debian-security bookworm-security main",
]
_AUTHORITIES = Path("/usr/local/share/ca-certificates")
_PIP = Path("/etc/pip.conf")
_PROCESSES = 4096
"""That a container may have at most, if the machine lets it have as many."""


def further(what: str) -> list[str]:
    """Return the options for this machine that a variable has: of BUILD or of RUN."""
    return shlex.split(os.environ.get(f"CONCLAVE_IMAGE_{what}", ""))


@dataclass
class Containers:
    """The program that runs containers, with what it needs on this machine: options of its own, of builds, of runs."""

    program: str
    own: list[str] = field(default_factory=list)
    to_build: list[str] = field(default_factory=lambda: further("BUILD"))
    to_run: list[str] = field(default_factory=lambda: further("RUN"))

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([self.program, *self.own, *words], capture_output=True, text=True)

    def must(self, *words: str) -> str:
        ran = self.run(*words)
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        return ran.stdout

    def has(self, image: str) -> bool:
        return self.run("image", "inspect", image).returncode == 0


def containers() -> Containers:
    """Return what runs containers here; skips where nothing does."""
    programs = [name for name in ("podman", "docker") if shutil.which(name)]
    found = [each for each in map(Containers, programs) if each.run("info").returncode == 0]
    if not found:
        pytest.skip("needs podman, or a docker that runs")
    return found[0]


def make_root(engine: Containers, folder: Path) -> str:
    """Make the base of Debian's packages, unless it was made before; return its name.

    The machine's own authorities get in, so that a build reaches what the machine reaches. Skips where no container
    runs on it.
    """
    if not engine.has(_ROOT):
        if not shutil.which("mmdebstrap"):
            pytest.skip("needs mmdebstrap, to make a Debian root (Debian: apt install mmdebstrap)")
        root = folder / "root.tar"
        hooks = ['--customize-hook=chroot "$1" update-ca-certificates']
        if _AUTHORITIES.is_dir():
            hooks.insert(0, f"--customize-hook=copy-in {_AUTHORITIES} {_AUTHORITIES.parent}")
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--include=ca-certificates",
            *hooks,
            "bookworm",
            str(root),
        ]
        subprocess.run([*command, *_SOURCES], check=True)
        engine.must("import", str(root), _ROOT)
        root.unlink()
    _fit(engine)
    return _ROOT


def _fit(engine: Containers) -> None:
    """Find what lets containers run on this machine, or skip."""
    if engine.program == "podman":
        # A root that may not raise its limits, as in some sandboxes, can give no more than it has.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
        processes = _PROCESSES if processes < 0 else min(processes, _PROCESSES)
        engine.to_run += [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"]
        # Steps of a build need no more than a folder for their root, and a network that is the machine's.
        engine.to_build += ["--isolation=chroot"]
        if _PIP.is_file():
            engine.to_build += [f"--volume={_PIP}:{_PIP}:ro"]
    said = ""
    for own in ([], ["--runtime=runc"]) if engine.program == "podman" else ([],):
        engine.own = own
        ran = engine.run("run", "--rm", "--network=none", *engine.to_run, _ROOT, "true")
        if ran.returncode == 0:
            return
        said = said or ran.stderr.strip()
    pytest.skip(f"no container runs here: {said}")
