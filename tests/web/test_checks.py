"""Parts of the browser's engine without a server. Each program exits with an error on failure."""

import subprocess
from pathlib import Path

import pytest

from conclave.client.mls.protection import padding_for
from tests.web.node import NODE, needs_node


@needs_node
@pytest.mark.parametrize("name", ["vault", "clock", "texts", "ratchet", "leaves"])
def test_a_part_of_the_engine(programs: Path, name: str) -> None:
    done = subprocess.run([NODE or "node", programs / f"check-{name}.mjs"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_padding_has_the_steps_that_the_program_expects() -> None:
    steps = {0: 32, 31: 32, 32: 64, 255: 256, 300: 320, 1_000: 1_024, 1_024: 1_280}
    assert {length: length + padding_for(length) for length in steps} == steps
