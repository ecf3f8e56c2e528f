"""The user's own signature key and key packages: made, kept until they can be of no use any more, and erased."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from conclave.client.codec import NewKeyPackages
from conclave.client.encryption.vault import Vault
from conclave.client.mls import MlsError, OwnKeyPackage, create_key_package, encode_message, fingerprint, suite_of

SUITE = suite_of(0x0006)
"""The cipher suite of existing clients."""

REGULAR = 5
"""So many are uploaded at once, beside one of last resort. The server keeps the 10 newest."""

KEPT_SECONDS = 60 * 86_400
"""Key packages are kept for 60 days: an invite may wait that long with one. They can be used for 90."""

RENEWED_SECONDS = 30 * 86_400
"""After 30 days new ones are uploaded, so that those at the server are never too old to be used."""

MOST = 600
"""So many are kept at most; the oldest go."""


MOST_FORMER = 8
"""So many own keys of before are known again."""


@dataclass(frozen=True)
class _Kept:
    package_key: int
    own: OwnKeyPackage = field(repr=False)


class Packages:
    """The account's own keys. There is a signature key from the first use on."""

    def __init__(self, vault: Vault, user_id: UUID, now: Callable[[], int]) -> None:
        self._vault, self._user_id, self._now = vault, user_id, now
        row = vault.connection.execute("SELECT segment, body_id, uploaded_at, former FROM about").fetchone()
        if row is None:
            with vault.transaction():
                self._make_key("")
        else:
            self._private, self._uploaded_at = vault.get((row[0], row[1])), int(row[2])
            self._former = str(row[3])

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the signature key."""
        return fingerprint(SUITE.signature.public_of(self._private))

    def made(self, signature_key: bytes) -> bool:
        """Tell whether a key is one of this device's, now or before: it is of no other device then."""
        return fingerprint(signature_key) in (self.fingerprint, *self._former.split())

    def save_unsent(self, data: bytes) -> None:
        """Keep what is not sent, encrypted with a key that is made of the signature key; b"": nothing.

        Within a transaction.
        """
        self._vault.erase_rows("unsent", "true")
        if data:
            nonce = os.urandom(SUITE.aead.nonce)
            place = self._vault.put(nonce + SUITE.aead.seal(self._key_of_unsent(), nonce, b"", data))
            self._vault.connection.execute("INSERT INTO unsent VALUES (1, ?, ?)", place)

    def load_unsent(self) -> bytes:
        """Return what is kept so; b"" if there is nothing, or it was not encrypted with this key."""
        row = self._vault.connection.execute("SELECT segment, body_id FROM unsent").fetchone()
        kept, size = self._vault.get(row) if row else b"", SUITE.aead.nonce
        try:
            return SUITE.aead.open(self._key_of_unsent(), kept[:size], b"", kept[size:]) if kept else b""
        except MlsError:
            return b""

    def _key_of_unsent(self) -> bytes:
        secret = SUITE.kdf.extract(b"", self._private)
        return SUITE.kdf.expand(secret, b"conclave unsent", SUITE.aead.key)

    @property
    def are_due(self) -> bool:
        """Whether new ones have to be uploaded before the old ones end."""
        return not 0 <= self._now() - self._uploaded_at < RENEWED_SECONDS

    def replace_key(self) -> None:
        """Make a new signature key; what was made with the old one is erased. Within a transaction."""
        unsent = self.load_unsent()
        self._vault.erase_rows("key_packages", "true")
        former = " ".join([self.fingerprint, *self._former.split()][:MOST_FORMER])
        self._vault.erase_rows("about", "true")
        self._make_key(former)
        self.save_unsent(unsent)

    def make(self, regular: int, *, last_resort: bool) -> NewKeyPackages:
        """Make key packages, and store them."""
        now, replaces_all = self._now(), self._uploaded_at == 0
        with self._vault.transaction() as connection:
            self._vault.erase_rows("key_packages", "made_at < ?", now - KEPT_SECONDS)
            ordinary = tuple(self._make_one(now, last_resort=False) for _ in range(regular))
            last = self._make_one(now, last_resort=True) if last_resort else None
            self._vault.erase_rows(
                "key_packages",
                "package_key <= (SELECT package_key FROM key_packages ORDER BY package_key DESC LIMIT 1 OFFSET ?)",
                MOST,
            )
            if last_resort:
                connection.execute("UPDATE about SET uploaded_at = ?", (now,))
        if last_resort:
            self._uploaded_at = now
        return NewKeyPackages(ordinary, last, self.fingerprint, replaces_all)

    def own_leaf(self) -> OwnKeyPackage:
        """Return a key package that is not uploaded: to create a group with, or to come in by an external commit."""
        return create_key_package(SUITE, self._user_id.bytes, self._private, self._now())

    def kept(self) -> list[OwnKeyPackage]:
        """Return those by which others may have added the user, the newest first."""
        return [each.own for each in self._kept()]

    def used(self, own: OwnKeyPackage) -> None:
        """One was used: erase it, unless it is one of last resort. Within a transaction."""
        if not own.key_package.is_last_resort:
            key = next(each.package_key for each in self._kept() if each.own == own)
            self._vault.erase_rows("key_packages", "package_key = ?", key)

    def _kept(self) -> list[_Kept]:
        rows = self._vault.connection.execute(
            "SELECT package_key, segment, body_id FROM key_packages ORDER BY package_key DESC"
        ).fetchall()
        return [_Kept(key, OwnKeyPackage.from_bytes(self._vault.get((segment, body)))) for key, segment, body in rows]

    def _make_key(self, former: str) -> None:
        """``former``: fingerprints of the keys before, by which own former leaves are known."""
        private = SUITE.signature_key_pair().private
        place = self._vault.put(private)
        self._vault.connection.execute(
            "INSERT INTO about (id, user_id, segment, body_id, former) VALUES (1, ?, ?, ?, ?)",
            (self._user_id.bytes, *place, former),
        )
        self._private, self._uploaded_at, self._former = private, 0, former

    def _make_one(self, now: int, *, last_resort: bool) -> bytes:
        own = create_key_package(SUITE, self._user_id.bytes, self._private, now, last_resort=last_resort)
        place = self._vault.put(own.to_bytes())
        self._vault.connection.execute(
            "INSERT INTO key_packages (is_last_resort, made_at, segment, body_id) VALUES (?, ?, ?, ?)",
            (last_resort, now, *place),
        )
        return encode_message(own.key_package)
