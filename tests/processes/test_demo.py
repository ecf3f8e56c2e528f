"""`make demo` is a test too."""

import subprocess
import sys


def test_the_demo_shows_what_the_policies_say() -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "conclave.demo"], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 6
    assert "WRONG" not in done.stdout
