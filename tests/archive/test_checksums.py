"""The checksum of an archived message, computed without Spark. That it is Spark's own, tests/spark/archive shows."""

import pytest

from conclave.archive.layout import DamagedMessageError, checksum, verify_checksum

SENDER, BODY = bytes(range(16)), b"body" * 75


def test_every_column_counts() -> None:
    found = {
        checksum(7, 9, SENDER, 1_700_000_000, BODY, is_commit=False),
        checksum(8, 9, SENDER, 1_700_000_000, BODY, is_commit=False),
        checksum(7, 2**40, SENDER, 1_700_000_000, BODY, is_commit=False),
        checksum(7, 9, bytes(16), 1_700_000_000, BODY, is_commit=False),
        checksum(7, 9, SENDER, 1_700_000_001, BODY, is_commit=False),
        checksum(7, 9, SENDER, 1_700_000_000, BODY[:-1] + b"x", is_commit=False),
        checksum(7, 9, SENDER, 1_700_000_000, BODY, is_commit=True),
    }
    assert len(found) == 7
    assert all(-(2**63) <= each < 2**63 for each in found)


def test_a_message_with_another_sum_is_damaged() -> None:
    right = checksum(7, 9, SENDER, 1_700_000_000, BODY, is_commit=False)
    verify_checksum(7, 9, SENDER, 1_700_000_000, BODY, right, is_commit=False)
    with pytest.raises(DamagedMessageError) as damaged:
        verify_checksum(7, 9, SENDER, 1_700_000_000, BODY, right ^ 1, is_commit=False)
    assert damaged.value.sequence_num == 9
