"""What takes minutes and downloads: done where it is asked for, by `make trials`."""

import os

import pytest

VARIABLE = "CONCLAVE_TRIALS"


def asked_for() -> None:
    """Skip unless it is asked for."""
    if not os.environ.get(VARIABLE):
        pytest.skip("takes minutes and downloads packages: make trials does it")
