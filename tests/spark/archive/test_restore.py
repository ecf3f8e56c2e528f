"""How a restore from the archive divides what it reads: the driver has little memory."""

import pytest

from conclave.actions.replay import NUMBERS
from spark.archive import restore


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [7],
        [*range(1, 1_001)],
        [*range(1, 500), *range(NUMBERS + 1, NUMBERS + 502)],
        [*range(1, 10), *range(2**51, 2**51 + 991)],
        [*range(1, 10_000, 999), *range(50_000, 50_100)],
    ],
    ids=["none", "one", "one after the other", "after a restore", "after a restore without a ledger", "mostly erased"],
)
@pytest.mark.parametrize("body_bytes", [0, 1_000, 25 * restore.WINDOW_BYTES])
def test_a_window_has_so_many_messages_wherever_their_numbers_lie(
    numbers: list[int], body_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "WINDOW_ROWS", 100)
    found = list(restore.windows(numbers, body_bytes))
    inside = [[number for number in numbers if first <= number <= last] for first, last in found]
    assert [number for window in inside for number in window] == numbers, "each once, in their order"
    assert all(0 < len(window) <= 100 for window in inside)
    assert len(found) <= max(-(-len(numbers) // 100), -(-body_bytes // restore.WINDOW_BYTES))
