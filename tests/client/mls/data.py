"""Test vectors, as tests want them."""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from conclave.client.mls import Policy
from conclave.client.mls.suites import CipherSuite, suite_of

FOLDER = Path(__file__).parent / "vectors"
NOW = 1_750_000_000
"""A moment at which those lifetimes of vectors begin to be over that are not endless."""
LENIENT = Policy(max_lifetime=1 << 64, admit_new_members=True)
"""Vectors have lifetimes of 200 years, or endless ones."""


@cache
def load(name: str) -> list[dict[str, Any]]:
    with lzma.open(FOLDER / f"{name}.json.xz") as file:
        found: list[dict[str, Any]] = json.load(file)
    return found


def suite(vector: dict[str, Any]) -> CipherSuite:
    return suite_of(vector["cipher_suite"])


def raw(text: str) -> bytes:
    return bytes.fromhex(text)
