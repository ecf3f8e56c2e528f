"""The code that two people compare."""

import hashlib

import pytest
from hypothesis import given, strategies as st

from conclave.client.encryption.comparison import WORDS, comparison_code

FINGERPRINTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


def test_the_words_are_256_different_ones_that_do_not_begin_alike() -> None:
    assert len(set(WORDS)) == len(WORDS) == 256
    assert list(WORDS) == sorted(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@given(FINGERPRINTS, FINGERPRINTS)
def test_it_is_the_same_on_both_sides_in_both_forms(one: str, other: str) -> None:
    code = comparison_code(one, other)
    assert code == comparison_code(other, one.upper())
    assert [len(each) for each in code.digits] == [5] * 6
    assert all(each.isdigit() for each in code.digits)
    assert len(code.words) == 12


@given(FINGERPRINTS, FINGERPRINTS, st.integers(0, 255))
def test_another_key_has_another_code_in_both_forms(one: str, other: str, bit: int) -> None:
    changed = (int(other, 16) ^ (1 << bit)).to_bytes(32, "big").hex()
    code, another = comparison_code(one, other), comparison_code(one, changed)
    assert code.digits != another.digits
    assert code.words != another.words


def test_it_stays_the_same_from_version_to_version() -> None:
    one, other = (hashlib.sha256(name).hexdigest() for name in (b"alice", b"bob"))
    code = comparison_code(one, other)
    assert " ".join(code.digits) == "76965 87418 34980 26673 70620 53067"
    assert " ".join(code.words) == "summer curtain feather temple atlas rabbit raven piano apron raven crater prince"


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32, "ab" * 33])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hex"):
        comparison_code("ab" * 32, text)
