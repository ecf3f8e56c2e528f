"""A command at a terminal."""

import contextlib
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.support.server import PATIENCE


def at_a_terminal(config: Path, *arguments: str, answers: dict[str, str]) -> tuple[int, str, str]:
    """Run a command at a terminal, and type each answer when its question comes.

    Return exit status, standard output, and what the terminal shows of what was typed.
    """
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "conclave", *arguments, "--config", config],
        cwd=config.parent,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # else the terminal that the tests were started from would be asked
    )
    os.close(theirs)
    assert process.stderr
    with closing(os.fdopen(ours, "r+b", buffering=0)) as terminal, process:
        for question, answer in answers.items():
            asked = b""
            while question.encode() not in asked:
                read = os.read(process.stderr.fileno(), 1000)
                assert read, asked
                asked += read
            terminal.write(answer.encode() + b"\n")
        printed, _ = process.communicate(timeout=PATIENCE)
        os.set_blocking(terminal.fileno(), False)
        with contextlib.suppress(OSError):
            return process.returncode, printed.decode(), (terminal.read(1000) or b"").decode()
    return process.returncode, printed.decode(), ""
