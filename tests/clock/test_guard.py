"""When the wall clock is not to be trusted."""

import pytest

from conclave.clock import Reading
from conclave.clock.guard import clock_fault

KNOWN = Reading(wall=1_000_000, since_boot=5_000, boot_id="a")
YEAR = 31_536_000


@pytest.mark.parametrize(
    ("wall", "since_boot", "boot_id", "newest", "fault"),
    [
        (1_000_060, 5_060, "a", 0, ""),
        (1_000_060 + 600, 5_060, "a", 0, ""),
        (1_000_060 + 601, 5_060, "a", 0, "set forward by 601 seconds"),
        (1_000_060 - 600, 5_060, "a", 0, ""),
        (1_000_060 - 601, 5_060, "a", 0, "set back by 601 seconds"),
        (1_000_000 + YEAR, 5_000 + YEAR, "a", 0, ""),
        (1_000_000 + YEAR, 60, "b", 0, ""),
        (1_000_000 - 601, 60, "b", 0, "601 seconds behind what is already stored"),
        (1_000_060, 60, "", 0, ""),
        (1_000_060, 60, "b", 1_000_060 + 600, ""),
        (1_000_060, 60, "b", 1_000_060 + 601, "601 seconds behind what is already stored"),
        (1_000_060, 5_060, "a", 1_000_060 + YEAR, f"{YEAR} seconds behind what is already stored"),
    ],
)
def test_the_clock_guard(wall: int, since_boot: int, boot_id: str, newest: int, fault: str) -> None:
    found = clock_fault(KNOWN, newest, Reading(wall, since_boot, boot_id))
    assert fault in found if fault else found == ""


def test_without_a_boot_id_a_restart_is_no_step() -> None:
    assert clock_fault(Reading(1_000_000, 90_000, ""), 0, Reading(1_000_100, 30, "")) == ""
