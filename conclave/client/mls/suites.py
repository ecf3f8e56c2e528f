"""Cipher suites (RFC 9420 sections 5.1 and 17.1) over the primitives of ``cryptography``, in a table."""

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x448 import X448PrivateKey, X448PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from conclave.client.mls.errors import InvalidError, MalformedMessageError


@dataclass(frozen=True, repr=False)
class KeyPair:
    """A private key with its public key, both as bytes."""

    private: bytes
    public: bytes


@dataclass(frozen=True)
class Kdf:
    """A key derivation function: HKDF over a hash. ``size``: Nh, the bytes of its hash."""

    number: int
    hash_name: str
    size: int

    def extract(self, salt: bytes, ikm: bytes) -> bytes:
        """HKDF-Extract (RFC 5869)."""
        return hmac.digest(salt, ikm, self.hash_name)

    def expand(self, prk: bytes, info: bytes, length: int) -> bytes:
        """HKDF-Expand (RFC 5869), up to the length of 255 hashes."""
        block, output = b"", b""
        for count in range(1, -(-length // self.size) + 1):
            block = hmac.digest(prk, block + info + bytes([count]), self.hash_name)
            output += block
        return output[:length]


@dataclass(frozen=True)
class Kem:
    """A key encapsulation mechanism of HPKE over a curve. ``size``: bytes of a key, private or public."""

    number: int
    kdf: Kdf
    private: type[X25519PrivateKey] | type[X448PrivateKey]
    diffie_hellman: Callable[[bytes | None, bytes], tuple[bytes, bytes]]
    size: int
    prime: int
    low_order: frozenset[int]

    def check_public(self, key: bytes, owner: str) -> None:
        """Check a received public key: its length, and that it is not of small order (RFC 7748 section 6).

        ``owner``: the start of the error's text. Points of small order are looked up, not computed.
        """
        if len(key) != self.size:
            raise InvalidError(f"{owner} of the wrong length")
        number = int.from_bytes(key, "little")
        number &= (1 << self.prime.bit_length()) - 1  # X25519 ignores the highest bit
        if number % self.prime in self.low_order:
            raise InvalidError(f"{owner} of small order")

    def public_of(self, private: bytes) -> bytes:
        """Return the public key of a private one."""
        self._check(private)
        return self.private.from_private_bytes(private).public_key().public_bytes_raw()

    def exchange(self, private: bytes, public: bytes) -> bytes:
        """Return the shared secret. Raises InvalidError for a public key of small order."""
        self._check(private)
        return self._exchange(private, public)[1]

    def exchange_once(self, public: bytes) -> tuple[bytes, bytes]:
        """Return the public key of an ephemeral pair, and the shared secret."""
        return self._exchange(None, public)

    def _exchange(self, private: bytes | None, public: bytes) -> tuple[bytes, bytes]:
        self._check(public)
        try:
            return self.diffie_hellman(private, public)
        except ValueError:
            raise InvalidError("a public key is of small order") from None

    def _check(self, key: bytes) -> None:
        if len(key) != self.size:
            raise InvalidError("an encryption key has the wrong length")


def _x25519(private: bytes | None, public: bytes) -> tuple[bytes, bytes]:
    own = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
    return own.public_key().public_bytes_raw(), own.exchange(X25519PublicKey.from_public_bytes(public))


def _x448(private: bytes | None, public: bytes) -> tuple[bytes, bytes]:
    own = X448PrivateKey.generate() if private is None else X448PrivateKey.from_private_bytes(private)
    return own.public_key().public_bytes_raw(), own.exchange(X448PublicKey.from_public_bytes(public))


@dataclass(frozen=True)
class Aead:
    """Authenticated encryption. ``key``, ``nonce``: Nk and Nn, their bytes."""

    number: int
    cipher: type[AESGCM] | type[ChaCha20Poly1305]
    key: int
    nonce: int

    def seal(self, key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
        """Encrypt."""
        return self.cipher(key).encrypt(nonce, plaintext, aad)

    def open(self, key: bytes, nonce: bytes, aad: bytes, ciphertext: bytes) -> bytes:
        """Decrypt. Raises InvalidError if authentication fails."""
        try:
            return self.cipher(key).decrypt(nonce, ciphertext, aad)
        except InvalidTag:
            raise InvalidError("a ciphertext cannot be decrypted: it was changed, or is for another key") from None


@dataclass(frozen=True)
class Signature:
    """A signature scheme of Edwards curves. ``size``: bytes of a private key and of a public one."""

    private: type[Ed25519PrivateKey] | type[Ed448PrivateKey]
    public: type[Ed25519PublicKey] | type[Ed448PublicKey]
    size: int

    def public_of(self, private: bytes) -> bytes:
        """Return the public key of a private one."""
        return self._load(private).public_key().public_bytes_raw()

    def sign(self, private: bytes, content: bytes) -> bytes:
        """Sign."""
        return self._load(private).sign(content)

    def _load(self, private: bytes) -> Ed25519PrivateKey | Ed448PrivateKey:
        if len(private) != self.size:
            raise InvalidError("a signature key has the wrong length")
        return self.private.from_private_bytes(private)

    def verify(self, public: bytes, content: bytes, signature: bytes) -> bool:
        """Return whether a signature is valid."""
        try:
            self.public.from_public_bytes(public).verify(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class CipherSuite:
    """A cipher suite. ``number``: its value in the registry."""

    number: int
    name: str
    kem: Kem
    kdf: Kdf
    aead: Aead
    signature: Signature

    def hash(self, data: bytes) -> bytes:
        """Return the hash of data with the suite's hash function."""
        return hashlib.new(self.kdf.hash_name, data).digest()

    def mac(self, key: bytes, data: bytes) -> bytes:
        """Return the HMAC of data with the suite's hash function."""
        return hmac.digest(key, data, self.kdf.hash_name)

    def signature_key_pair(self) -> KeyPair:
        """Create a signature key pair."""
        private = os.urandom(self.signature.size)
        return KeyPair(private, self.signature.public_of(private))


HKDF_SHA256 = Kdf(0x0001, "sha256", 32)
HKDF_SHA512 = Kdf(0x0003, "sha512", 64)
P25519, P448 = 2**255 - 19, 2**448 - 2**224 - 1
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
"""The u-coordinates of Curve25519's points of order 8. Both curves have points of small order at 0, 1 and -1."""
DHKEM_X25519 = Kem(0x0020, HKDF_SHA256, X25519PrivateKey, _x25519, 32, P25519, frozenset((0, 1, P25519 - 1, *ORDER_8)))
DHKEM_X448 = Kem(0x0021, HKDF_SHA512, X448PrivateKey, _x448, 56, P448, frozenset((0, 1, P448 - 1)))
AES_128_GCM = Aead(0x0001, AESGCM, 16, 12)
CHACHA20_POLY1305 = Aead(0x0003, ChaCha20Poly1305, 32, 12)
ED25519 = Signature(Ed25519PrivateKey, Ed25519PublicKey, 32)
ED448 = Signature(Ed448PrivateKey, Ed448PublicKey, 57)

SUITES = {
    suite.number: suite
    for suite in (
        CipherSuite(
            0x0001,
            "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",
            DHKEM_X25519,
            HKDF_SHA256,
            AES_128_GCM,
            ED25519,
        ),
        CipherSuite(
            0x0006,
            "MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448",
            DHKEM_X448,
            HKDF_SHA512,
            CHACHA20_POLY1305,
            ED448,
        ),
    )
}


def suite_of(number: int) -> CipherSuite:
    """Return a suite by its number. Raises MalformedMessageError if it is not supported."""
    try:
        return SUITES[number]
    except KeyError:
        raise MalformedMessageError(f"cipher suite {number} is not supported") from None
