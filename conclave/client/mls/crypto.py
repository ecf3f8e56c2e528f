"""Cryptographic objects (RFC 9420 sections 5.1.2, 5.1.3, 5.2 and 8): signing, encrypting and deriving with labels."""

import hashlib
import hmac
import os
from dataclasses import dataclass

from conclave.client.mls import hpke
from conclave.client.mls.codec import opaque, uint16, uint32
from conclave.client.mls.errors import InvalidError, LimitError
from conclave.client.mls.structs import Opaque, Struct
from conclave.client.mls.suites import CipherSuite, KeyPair

PREFIX = b"MLS 1.0 "


@dataclass(frozen=True)
class HPKECiphertext(Struct):
    """A ciphertext for a public key (section 7.6)."""

    kem_output: Opaque
    ciphertext: Opaque


def _labeled(label: str, content: bytes) -> bytes:
    """SignContent and EncryptContext."""
    return opaque(PREFIX + label.encode()) + opaque(content)


def sign_with_label(suite: CipherSuite, private: bytes, label: str, content: bytes) -> bytes:
    """SignWithLabel (section 5.1.2)."""
    return suite.signature.sign(private, _labeled(label, content))


def verify_with_label(suite: CipherSuite, public: bytes, label: str, content: bytes, signature: bytes) -> bool:
    """VerifyWithLabel (section 5.1.2)."""
    return suite.signature.verify(public, _labeled(label, content), signature)


def encrypt_with_label(
    suite: CipherSuite, public: bytes, label: str, context: bytes, plaintext: bytes
) -> HPKECiphertext:
    """EncryptWithLabel (section 5.1.3)."""
    return HPKECiphertext(*hpke.seal_base(suite, public, _labeled(label, context), b"", plaintext))


def decrypt_with_label(
    suite: CipherSuite, own: KeyPair, label: str, context: bytes, encrypted: HPKECiphertext
) -> bytes:
    """DecryptWithLabel (section 5.1.3)."""
    info = _labeled(label, context)
    return hpke.open_base(suite, encrypted.kem_output, own, info, b"", encrypted.ciphertext)


def ref_hash(suite: CipherSuite, label: str, value: bytes) -> bytes:
    """RefHash (section 5.2); the label is given in full."""
    return suite.hash(opaque(label.encode()) + opaque(value))


def make_key_package_ref(suite: CipherSuite, key_package: bytes) -> bytes:
    """MakeKeyPackageRef (section 5.2)."""
    return ref_hash(suite, "MLS 1.0 KeyPackage Reference", key_package)


def make_proposal_ref(suite: CipherSuite, authenticated_content: bytes) -> bytes:
    """MakeProposalRef (section 5.2)."""
    return ref_hash(suite, "MLS 1.0 Proposal Reference", authenticated_content)


def expand_with_label(suite: CipherSuite, secret: bytes, label: str, context: bytes, length: int) -> bytes:
    """ExpandWithLabel (section 8)."""
    if not 0 < length <= 255 * suite.kdf.size:
        raise LimitError("the length of a derived secret is 0 or too great")
    return suite.kdf.expand(secret, uint16(length) + opaque(PREFIX + label.encode()) + opaque(context), length)


def derive_secret(suite: CipherSuite, secret: bytes, label: str) -> bytes:
    """DeriveSecret (section 8)."""
    return expand_with_label(suite, secret, label, b"", suite.kdf.size)


def derive_tree_secret(suite: CipherSuite, secret: bytes, label: str, generation: int, length: int) -> bytes:
    """DeriveTreeSecret (section 9.1)."""
    return expand_with_label(suite, secret, label, uint32(generation), length)


def random_secret(suite: CipherSuite) -> bytes:
    """Return a fresh secret of Nh bytes."""
    return os.urandom(suite.kdf.size)


def zeros(suite: CipherSuite) -> bytes:
    """Return the all-zero vector of Nh bytes, ``0`` in the key schedule."""
    return bytes(suite.kdf.size)


def check_equal(one: bytes, other: bytes, sentence: str) -> None:
    """Compare two secrets or tags in constant time; raise InvalidError with ``sentence`` if they differ."""
    if not hmac.compare_digest(one, other):
        raise InvalidError(sentence)


def fingerprint(signature_key: bytes) -> str:
    """Return the fingerprint of a public signature key: SHA-256 in hexadecimal."""
    return hashlib.sha256(signature_key).hexdigest()
