"""Hybrid public key encryption (RFC 9180): base mode, one message per context, over X25519 and X448."""

import os
from dataclasses import dataclass
from functools import cache

from conclave.client.mls.codec import uint16
from conclave.client.mls.suites import CipherSuite, Kdf, Kem, KeyPair

VERSION = b"HPKE-v1"
MODE_BASE = b"\x00"


@dataclass(frozen=True, repr=False)
class HpkeContext:
    """The context shared by both sides (section 5.1)."""

    key: bytes
    base_nonce: bytes
    exporter_secret: bytes


def labeled_extract(kdf: Kdf, suite_id: bytes, salt: bytes, label: bytes, ikm: bytes) -> bytes:
    """LabeledExtract (section 4)."""
    return kdf.extract(salt, VERSION + suite_id + label + ikm)


def labeled_expand(kdf: Kdf, suite_id: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """LabeledExpand (section 4)."""
    return kdf.expand(prk, uint16(length) + VERSION + suite_id + label + info, length)


def _kem_id(kem: Kem) -> bytes:
    return b"KEM" + uint16(kem.number)


def _hpke_id(suite: CipherSuite) -> bytes:
    return b"HPKE" + uint16(suite.kem.number) + uint16(suite.kdf.number) + uint16(suite.aead.number)


def derive_key_pair(suite: CipherSuite, ikm: bytes) -> KeyPair:
    """DeriveKeyPair of X25519 and X448 (section 7.1.3)."""
    kem = suite.kem
    prk = labeled_extract(kem.kdf, _kem_id(kem), b"", b"dkp_prk", ikm)
    private = labeled_expand(kem.kdf, _kem_id(kem), prk, b"sk", b"", kem.size)
    return KeyPair(private, kem.public_of(private))


def generate_key_pair(suite: CipherSuite) -> KeyPair:
    """Make a new key pair (section 4)."""
    return derive_key_pair(suite, os.urandom(suite.kem.kdf.size))


def _shared_secret(kem: Kem, dh: bytes, enc: bytes, recipient: bytes) -> bytes:
    """ExtractAndExpand (section 4.1)."""
    prk = labeled_extract(kem.kdf, _kem_id(kem), b"", b"eae_prk", dh)
    return labeled_expand(kem.kdf, _kem_id(kem), prk, b"shared_secret", enc + recipient, kem.kdf.size)


@cache
def _psk_id_hash(suite: CipherSuite) -> bytes:
    return labeled_extract(suite.kdf, _hpke_id(suite), b"", b"psk_id_hash", b"")


def _key_schedule(suite: CipherSuite, shared_secret: bytes, info: bytes) -> HpkeContext:
    """KeySchedule in base mode (section 5.1)."""
    kdf, suite_id = suite.kdf, _hpke_id(suite)
    context = MODE_BASE + _psk_id_hash(suite) + labeled_extract(kdf, suite_id, b"", b"info_hash", info)
    secret = labeled_extract(kdf, suite_id, shared_secret, b"secret", b"")
    return HpkeContext(
        labeled_expand(kdf, suite_id, secret, b"key", context, suite.aead.key),
        labeled_expand(kdf, suite_id, secret, b"base_nonce", context, suite.aead.nonce),
        labeled_expand(kdf, suite_id, secret, b"exp", context, kdf.size),
    )


def setup_base_s(suite: CipherSuite, recipient: bytes, info: bytes) -> tuple[bytes, HpkeContext]:
    """SetupBaseS (section 5.1.1): return ``enc``, which the recipient needs, and the context."""
    enc, dh = suite.kem.exchange_once(recipient)
    return enc, _key_schedule(suite, _shared_secret(suite.kem, dh, enc, recipient), info)


def setup_base_r(suite: CipherSuite, enc: bytes, own: KeyPair, info: bytes) -> HpkeContext:
    """SetupBaseR (section 5.1.1)."""
    dh = suite.kem.exchange(own.private, enc)
    return _key_schedule(suite, _shared_secret(suite.kem, dh, enc, own.public), info)


def seal_base(suite: CipherSuite, recipient: bytes, info: bytes, aad: bytes, plaintext: bytes) -> tuple[bytes, bytes]:
    """SealBase (section 6.1): return ``enc`` and the ciphertext."""
    enc, context = setup_base_s(suite, recipient, info)
    return enc, suite.aead.seal(context.key, context.base_nonce, aad, plaintext)


def open_base(suite: CipherSuite, enc: bytes, own: KeyPair, info: bytes, aad: bytes, ciphertext: bytes) -> bytes:
    """OpenBase (section 6.1)."""
    context = setup_base_r(suite, enc, own, info)
    return suite.aead.open(context.key, context.base_nonce, aad, ciphertext)


def export(suite: CipherSuite, context: HpkeContext, exporter_context: bytes, length: int) -> bytes:
    """Context.Export (section 5.3)."""
    return labeled_expand(suite.kdf, _hpke_id(suite), context.exporter_secret, b"sec", exporter_context, length)
