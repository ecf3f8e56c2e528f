"""The user's own signature key and key packages: creates, stores and erases them."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from conclave.client.codec import NewKeyPackages
from conclave.client.encryption.key_database import KeyDatabase
from conclave.client.mls import MlsError, OwnKeyPackage, create_key_package, encode_message, fingerprint, suite_of

SUITE = suite_of(0x0006)
"""The cipher suite of existing clients."""

KEEP_SECONDS = 60 * 86_400
"""How long key packages are stored: an invite may be accepted this late. They are valid for 90 days."""

RENEWAL_SECONDS = 30 * 86_400
"""Age at which the key packages on the server are replaced, before they expire."""

MAX_STORED = 600
"""Maximum number of stored key packages; the oldest are erased first."""


MAX_FORMER_KEYS = 8
"""Maximum number of stored fingerprints of former own keys."""


@dataclass(frozen=True)
class _StoredPackage:
    package_key: int
    own: OwnKeyPackage = field(repr=False)


class OwnKeys:
    """The account's own keys. The signature key is created when the file is first used."""

    def __init__(self, database: KeyDatabase, user_id: UUID, now: Callable[[], int]) -> None:
        self._database, self._user_id, self._now = database, user_id, now
        row = database.connection.execute("SELECT segment, body_id, uploaded_at, former FROM about").fetchone()
        if row is None:
            with database.transaction():
                self._create_key("")
        else:
            self._private, self._uploaded_at = database.get((row[0], row[1])), int(row[2])
            self._former = str(row[3])

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the signature key."""
        return fingerprint(SUITE.signature.public_of(self._private))

    def is_own(self, signature_key: bytes) -> bool:
        """Return whether a key is a current or former key of this device."""
        return fingerprint(signature_key) in (self.fingerprint, *self._former.split())

    def save_unsent(self, data: bytes) -> None:
        """Store unsent input, encrypted with a key derived from the signature key; b"" deletes it.

        Within a transaction.
        """
        self._database.erase_rows("unsent", "true")
        if data:
            nonce = os.urandom(SUITE.aead.nonce)
            location = self._database.put(nonce + SUITE.aead.seal(self._unsent_key(), nonce, b"", data))
            self._database.connection.execute("INSERT INTO unsent VALUES (1, ?, ?)", location)

    def load_unsent(self) -> bytes:
        """Return the stored unsent input; b"" if there is none, or it was encrypted with another key."""
        row = self._database.connection.execute("SELECT segment, body_id FROM unsent").fetchone()
        encrypted, nonce_size = self._database.get(row) if row else b"", SUITE.aead.nonce
        try:
            return (
                SUITE.aead.open(self._unsent_key(), encrypted[:nonce_size], b"", encrypted[nonce_size:])
                if encrypted
                else b""
            )
        except MlsError:
            return b""

    def _unsent_key(self) -> bytes:
        secret = SUITE.kdf.extract(b"", self._private)
        return SUITE.kdf.expand(secret, b"conclave unsent", SUITE.aead.key)

    @property
    def are_outdated(self) -> bool:
        """Whether the uploaded key packages should be replaced."""
        return not 0 <= self._now() - self._uploaded_at < RENEWAL_SECONDS

    def replace_key(self) -> None:
        """Create a new signature key, and erase the former one with its key packages. Within a transaction."""
        unsent = self.load_unsent()
        self._database.erase_rows("key_packages", "true")
        former = " ".join([self.fingerprint, *self._former.split()][:MAX_FORMER_KEYS])
        self._database.erase_rows("about", "true")
        self._create_key(former)
        self.save_unsent(unsent)

    def make(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Create and store key packages."""
        now, replaces_all = self._now(), self._uploaded_at == 0
        with self._database.transaction() as connection:
            self._database.erase_rows("key_packages", "made_at < ?", now - KEEP_SECONDS)
            regular_packages = tuple(self._create_package(now, last_resort=False) for _ in range(regular))
            last_resort_package = self._create_package(now, last_resort=True) if last_resort else None
            self._database.erase_rows(
                "key_packages",
                "package_key <= (SELECT package_key FROM key_packages ORDER BY package_key DESC LIMIT 1 OFFSET ?)",
                MAX_STORED,
            )
            if last_resort:
                connection.execute("UPDATE about SET uploaded_at = ?", (now,))
        if last_resort:
            self._uploaded_at = now
        return NewKeyPackages(regular_packages, last_resort_package, self.fingerprint, replaces_all)

    def new_package(self) -> OwnKeyPackage:
        """Return a key package that is not uploaded, to create a group or for an external commit."""
        return create_key_package(SUITE, self._user_id.bytes, self._private, self._now())

    def stored_packages(self) -> list[OwnKeyPackage]:
        """Return the stored key packages, newest first."""
        return [each.own for each in self._stored_rows()]

    def drop_used(self, own: OwnKeyPackage) -> None:
        """Erase a used key package, unless it is a last-resort one. Within a transaction."""
        if not own.key_package.is_last_resort:
            key = next(each.package_key for each in self._stored_rows() if each.own == own)
            self._database.erase_rows("key_packages", "package_key = ?", key)

    def _stored_rows(self) -> list[_StoredPackage]:
        rows = self._database.connection.execute(
            "SELECT package_key, segment, body_id FROM key_packages ORDER BY package_key DESC"
        ).fetchall()
        return [
            _StoredPackage(key, OwnKeyPackage.from_bytes(self._database.get((segment, body))))
            for key, segment, body in rows
        ]

    def _create_key(self, former: str) -> None:
        """Create a signature key. ``former``: fingerprints of the former keys, to recognize own leaves."""
        private = SUITE.signature_key_pair().private
        location = self._database.put(private)
        self._database.connection.execute(
            "INSERT INTO about (id, user_id, segment, body_id, former) VALUES (1, ?, ?, ?, ?)",
            (self._user_id.bytes, *location, former),
        )
        self._private, self._uploaded_at, self._former = private, 0, former

    def _create_package(self, now: int, *, last_resort: bool) -> bytes:
        own = create_key_package(SUITE, self._user_id.bytes, self._private, now, last_resort=last_resort)
        location = self._database.put(own.to_bytes())
        self._database.connection.execute(
            "INSERT INTO key_packages (is_last_resort, made_at, segment, body_id) VALUES (?, ?, ?, ?)",
            (last_resort, now, *location),
        )
        return encode_message(own.key_package)
