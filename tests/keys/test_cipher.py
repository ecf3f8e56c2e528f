"""Bodies under keys: what was altered, or belongs elsewhere, is never given out."""

import pytest

from conclave.keys import cipher
from conclave.keys.cipher import AlteredError

KEY, GROUP = bytes(range(32)), bytes(16)


@pytest.mark.parametrize("body", [b"", b"x", bytes(100_000)])
def test_a_body_comes_back_as_it_was(body: bytes) -> None:
    stored = cipher.encrypt(KEY, GROUP, 7, body)
    assert len(stored) == len(body) + cipher.OVERHEAD_BYTES
    assert cipher.decrypt(KEY, GROUP, 7, stored) == body


def test_the_same_body_under_the_same_key_is_stored_in_another_form_each_time() -> None:
    """A number that is given twice gives nothing away."""
    assert cipher.encrypt(KEY, GROUP, 7, b"body") != cipher.encrypt(KEY, GROUP, 7, b"body")


def test_a_bit_that_is_flipped_anywhere_is_noticed() -> None:
    stored = cipher.encrypt(KEY, GROUP, 7, b"body")
    for bit in range(8 * len(stored)):
        altered = bytearray(stored)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AlteredError, match="message 7 of group 0000"):
            cipher.decrypt(KEY, GROUP, 7, bytes(altered))


@pytest.mark.parametrize(("key", "group_id", "number"), [(bytes(32), GROUP, 7), (KEY, b"\1" * 16, 7), (KEY, GROUP, 8)])
def test_a_body_is_bound_to_its_key_its_group_and_its_number(key: bytes, group_id: bytes, number: int) -> None:
    stored = cipher.encrypt(KEY, GROUP, 7, b"body")
    with pytest.raises(AlteredError):
        cipher.decrypt(key, group_id, number, stored)


@pytest.mark.parametrize("length", range(cipher.OVERHEAD_BYTES))
def test_a_body_that_was_cut_short_is_noticed(length: int) -> None:
    with pytest.raises(AlteredError):
        cipher.decrypt(KEY, GROUP, 7, cipher.encrypt(KEY, GROUP, 7, b"")[:length])
