"""What looks at processes, while these come and go."""

import subprocess

from bench.process import children, descendants, runs
from tests.support.server import waiting

FORKS = "while :; do (sleep 0 | true); done"
"""A shell whose children have children of their own, each for a millisecond."""


def test_processes_that_end_while_they_are_looked_at_are_left_out() -> None:
    shell = subprocess.Popen(["bash", "-c", FORKS])
    try:
        seen: set[int] = set()
        for _ in waiting("processes that come and go"):
            for _ in range(100):
                seen.update(descendants(shell.pid))
            if len(seen) >= 300:
                break
    finally:
        shell.kill()
        shell.wait()
    assert not runs(shell.pid)
    assert descendants(shell.pid) == children(shell.pid) == []
