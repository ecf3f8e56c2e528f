"""What all commands share."""

import subprocess
import sys
from pathlib import Path

_TWO_SIGNALS = """
import os, signal
from conclave.cli.common import exit_on_signals

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored under nohup
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with exit_on_signals():
    both = {signal.SIGHUP, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for each in both:
        os.kill(os.getpid(), each)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
"""


def test_two_signals_at_once_end_a_command_without_a_word(tmp_path: Path) -> None:
    """As a terminal that closes and a manager that stops."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _TWO_SIGNALS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (129, "")
