"""HPKE against another implementation of it, and what it refuses."""

import pytest
from cryptography.hazmat.primitives import hpke as theirs
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from conclave.client.mls import InvalidError, LimitError, hpke, suite_of
from conclave.client.mls.crypto import expand_with_label, fingerprint
from conclave.client.mls.suites import SUITES, KeyPair

SUITE = suite_of(1)
OTHER = theirs.Suite(theirs.KEM.X25519, theirs.KDF.HKDF_SHA256, theirs.AEAD.AES_128_GCM)
"""The HPKE of the library has X25519, but not X448."""


def test_what_this_one_seals_the_other_opens_and_the_reverse() -> None:
    own = hpke.generate_key_pair(SUITE)
    private = X25519PrivateKey.from_private_bytes(own.private)
    enc, ciphertext = hpke.seal_base(SUITE, own.public, b"info", b"", b"plaintext")
    assert OTHER.decrypt(enc + ciphertext, private, b"info") == b"plaintext"
    sealed = OTHER.encrypt(b"plaintext", private.public_key(), b"info")
    assert hpke.open_base(SUITE, sealed[:32], own, b"info", b"", sealed[32:]) == b"plaintext"


@pytest.mark.parametrize("number", SUITES)
def test_both_sides_export_the_same(number: int) -> None:
    suite = suite_of(number)
    own = hpke.generate_key_pair(suite)
    enc, sender = hpke.setup_base_s(suite, own.public, b"info")
    recipient = hpke.setup_base_r(suite, enc, own, b"info")
    assert hpke.export(suite, sender, b"context", 40) == hpke.export(suite, recipient, b"context", 40)
    assert hpke.setup_base_r(suite, enc, own, b"other") != sender


@pytest.mark.parametrize("number", SUITES)
def test_keys_that_give_no_secret_are_refused(number: int) -> None:
    suite = suite_of(number)
    own = hpke.generate_key_pair(suite)
    for public in (bytes(suite.kem.size), b"\x01" + bytes(suite.kem.size - 1), b"", bytes(7)):
        with pytest.raises(InvalidError):
            hpke.seal_base(suite, public, b"", b"", b"x")
        with pytest.raises(InvalidError):
            hpke.open_base(suite, public, own, b"", b"", bytes(40))
    with pytest.raises(InvalidError, match="wrong length"):
        hpke.open_base(suite, own.public, KeyPair(b"x", own.public), b"", b"", bytes(40))
    with pytest.raises(InvalidError, match="wrong length"):
        suite.signature.sign(b"x", b"content")


@pytest.mark.parametrize("number", SUITES)
def test_signatures_with_impossible_keys_are_not_valid(number: int) -> None:
    suite = suite_of(number)
    for public in (b"", b"x", b"\xff" * suite.signature.size):
        assert not suite.signature.verify(public, b"content", bytes(2 * suite.signature.size))


def test_a_secret_has_a_length_that_is_possible() -> None:
    for length in (0, -1, 255 * 32 + 1):
        with pytest.raises(LimitError):
            expand_with_label(SUITE, bytes(32), "label", b"", length)


def test_a_fingerprint_is_what_people_compare() -> None:
    assert fingerprint(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
