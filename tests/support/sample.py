"""How much of the exhaustive tests is done: a sample, another one each time, or everything.

``CONCLAVE_SAMPLE=all``, as `make test-all` has it, is everything. Otherwise it is the number of a sample, which has the
same one again; without it one is chosen, and told at the end.
"""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "CONCLAVE_SAMPLE"
ALL = "all"

T = TypeVar("T")


def choose() -> str:
    """Settle how much is done, before any test is collected, for this process and those that it starts; return it."""
    return os.environ.setdefault(VARIABLE, str(random.randrange(10**6)))


def is_all() -> bool:
    """Tell whether everything is to be done."""
    return os.environ.get(VARIABLE) == ALL


def seed() -> int:
    """Return the number of the sample; 0 where everything is done."""
    return 0 if is_all() else int(os.environ.get(VARIABLE, "0"))


def chance(what: str) -> random.Random:
    """Return what chooses ``what``: the same in every process."""
    return random.Random(f"{seed()} {what}")


def some(everything: Sequence[T], count: int, what: str) -> list[T]:
    """Return ``count`` of them, in their order, or all where everything is done. ``what`` names the choice."""
    if is_all():
        return list(everything)
    chosen = chance(what).sample(range(len(everything)), min(count, len(everything)))
    return [everything[position] for position in sorted(chosen)]


def amount(everything: int, few: int) -> int:
    """Return how many there are: ``few``, unless everything is done."""
    return everything if is_all() else few
