"""The checksum of an archived message, computed without Spark. That it is Spark's own, tests/spark/archive shows."""

import pytest

from conclave.archive.sums import DamagedError, checksum, require_sound

MESSAGE = (7, 2**40 + 1, bytes(range(16)), 1_700_000_000, b"body" * 75)


def test_every_column_counts() -> None:
    right = checksum(*MESSAGE, is_commit=False)
    others = {
        checksum(*MESSAGE[:place], altered, *MESSAGE[place + 1 :], is_commit=False)
        for place, altered in enumerate((8, 2**40, bytes(16), 1_700_000_001, b"body" * 74 + b"bodx"))
    }
    assert len(others | {right, checksum(*MESSAGE, is_commit=True)}) == 7
    assert all(-(2**63) <= each < 2**63 for each in others)


def test_a_message_with_another_sum_is_damaged() -> None:
    right = checksum(*MESSAGE, is_commit=False)
    require_sound(*MESSAGE, right, is_commit=False)
    with pytest.raises(DamagedError) as damaged:
        require_sound(*MESSAGE, right ^ 1, is_commit=False)
    assert damaged.value.sequence_num == MESSAGE[1]
