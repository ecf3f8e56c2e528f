"""The key schedule (RFC 9420 section 8). Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from conclave.client.mls import hpke
from conclave.client.mls.codec import ByteReader, opaque, uint8, uint16, uint64
from conclave.client.mls.credentials import Extensions
from conclave.client.mls.crypto import derive_secret, expand_with_label, zeros
from conclave.client.mls.errors import MalformedMessageError
from conclave.client.mls.nodes import MLS10
from conclave.client.mls.structs import Epoch, Opaque, Short, Struct, Uint16
from conclave.client.mls.suites import CipherSuite, KeyPair, suite_of

EXTERNAL_INIT_LABEL = b"MLS 1.0 external init secret"


@dataclass(frozen=True)
class GroupContext(Struct):
    """The state that all members agree on (section 8.1), encoded after the version of the protocol."""

    cipher_suite: Uint16
    group_id: Short
    epoch: Epoch
    tree_hash: Short
    confirmed_transcript_hash: Short
    extensions: Extensions = ()

    def encode(self) -> bytes:
        """Encode."""
        return uint16(MLS10) + super().encode()

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        if reader.uint16() != MLS10:
            raise MalformedMessageError("a group has an unsupported version of the protocol")
        return super().decode(reader)

    @property
    def suite(self) -> CipherSuite:
        """The cipher suite."""
        return suite_of(self.cipher_suite)


@dataclass(frozen=True, repr=False)
class EpochSecrets(Struct):
    """The stored secrets of an epoch (section 8, table 4), except the encryption secret: see the secret tree."""

    init_secret: Opaque
    sender_data_secret: Opaque
    exporter_secret: Opaque
    external_secret: Opaque
    confirmation_key: Opaque
    membership_key: Opaque
    resumption_psk: Opaque
    epoch_authenticator: Opaque


@dataclass(frozen=True, repr=False)
class EpochSchedule:
    """All secrets of an epoch: those that are stored, and those that are used once and dropped."""

    secrets: EpochSecrets
    joiner_secret: bytes
    welcome_secret: bytes
    encryption_secret: bytes


def derive_joiner_secret(suite: CipherSuite, init_secret: bytes, commit_secret: bytes, group_context: bytes) -> bytes:
    """Return the joiner secret."""
    extracted = suite.kdf.extract(init_secret, commit_secret)
    return expand_with_label(suite, extracted, "joiner", group_context, suite.kdf.size)


def derive_welcome_secret(suite: CipherSuite, joiner_secret: bytes, psk_secret: bytes) -> bytes:
    """Return the welcome secret, which encrypts the group info of a Welcome."""
    return derive_secret(suite, suite.kdf.extract(joiner_secret, psk_secret), "welcome")


def derive_epoch(suite: CipherSuite, joiner_secret: bytes, psk_secret: bytes, group_context: bytes) -> EpochSchedule:
    """Derive the secrets of an epoch from its joiner secret."""
    extracted = suite.kdf.extract(joiner_secret, psk_secret)
    epoch_secret = expand_with_label(suite, extracted, "epoch", group_context, suite.kdf.size)
    return EpochSchedule(
        epoch_secrets(suite, epoch_secret),
        joiner_secret,
        derive_welcome_secret(suite, joiner_secret, psk_secret),
        derive_secret(suite, epoch_secret, "encryption"),
    )


def epoch_secrets(suite: CipherSuite, epoch_secret: bytes) -> EpochSecrets:
    """Derive the stored secrets from an epoch secret."""
    return EpochSecrets(
        init_secret=derive_secret(suite, epoch_secret, "init"),
        sender_data_secret=derive_secret(suite, epoch_secret, "sender data"),
        exporter_secret=derive_secret(suite, epoch_secret, "exporter"),
        external_secret=derive_secret(suite, epoch_secret, "external"),
        confirmation_key=derive_secret(suite, epoch_secret, "confirm"),
        membership_key=derive_secret(suite, epoch_secret, "membership"),
        resumption_psk=derive_secret(suite, epoch_secret, "resumption"),
        epoch_authenticator=derive_secret(suite, epoch_secret, "authentication"),
    )


def external_key_pair(suite: CipherSuite, secrets: EpochSecrets) -> KeyPair:
    """Return the key pair for external commits (section 8)."""
    return hpke.derive_key_pair(suite, secrets.external_secret)


def external_init(suite: CipherSuite, external_pub: bytes) -> tuple[bytes, bytes]:
    """Return the KEM output of a new member's ExternalInit, and the init secret (section 8.3)."""
    kem_output, context = hpke.setup_base_s(suite, external_pub, b"")
    return kem_output, hpke.export(suite, context, EXTERNAL_INIT_LABEL, suite.kdf.size)


def external_init_secret(suite: CipherSuite, secrets: EpochSecrets, kem_output: bytes) -> bytes:
    """Return the init secret from a new member's KEM output (section 8.3)."""
    context = hpke.setup_base_r(suite, kem_output, external_key_pair(suite, secrets), b"")
    return hpke.export(suite, context, EXTERNAL_INIT_LABEL, suite.kdf.size)


def export_secret(suite: CipherSuite, secrets: EpochSecrets, label: str, context: bytes, length: int) -> bytes:
    """MLS-Exporter (section 8.5)."""
    secret = derive_secret(suite, secrets.exporter_secret, label)
    return expand_with_label(suite, secret, "exported", suite.hash(context), length)


# Transcript hashes (section 8.2)


def confirmed_transcript_hash(suite: CipherSuite, interim: bytes, confirmed_input: bytes) -> bytes:
    """Add a commit to the hash. ``confirmed_input``: its ConfirmedTranscriptHashInput."""
    return suite.hash(interim + confirmed_input)


def interim_transcript_hash(suite: CipherSuite, confirmed: bytes, confirmation_tag: bytes) -> bytes:
    """Add the confirmation tag of a commit to the hash."""
    return suite.hash(confirmed + opaque(confirmation_tag))


# Pre-shared keys (section 8.4)


class PSKType(IntEnum):
    """Sources of a pre-shared key."""

    EXTERNAL = 1
    RESUMPTION = 2


class ResumptionPSKUsage(IntEnum):
    """Uses of a resumption key."""

    APPLICATION = 1
    REINIT = 2
    BRANCH = 3


@dataclass(frozen=True)
class PreSharedKeyID:
    """The id of a pre-shared key. External keys have a ``psk_id``; resumption keys have usage, group and epoch."""

    psktype: PSKType
    psk_nonce: bytes
    psk_id: bytes = b""
    usage: ResumptionPSKUsage | None = None
    psk_group_id: bytes = b""
    psk_epoch: int = 0

    def encode(self) -> bytes:
        """Encode."""
        if self.usage is None:
            source = opaque(self.psk_id)
        else:
            source = uint8(self.usage) + opaque(self.psk_group_id) + uint64(self.psk_epoch)
        return uint8(self.psktype) + source + opaque(self.psk_nonce)

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        psktype = reader.enum(PSKType, reader.uint8())
        if psktype == PSKType.EXTERNAL:
            psk_id = reader.short()
            return cls(psktype, reader.short(), psk_id)
        usage = reader.enum(ResumptionPSKUsage, reader.uint8())
        group_id, epoch = reader.short(), reader.epoch()
        return cls(psktype, reader.short(), usage=usage, psk_group_id=group_id, psk_epoch=epoch)


def derive_psk_secret(suite: CipherSuite, psks: Sequence[tuple[PreSharedKeyID, bytes]]) -> bytes:
    """Return the combined secret of a commit's pre-shared keys, in order; zeros if there are none."""
    secret = zeros(suite)
    for index, (psk_id, psk) in enumerate(psks):
        label = psk_id.encode() + uint16(index) + uint16(len(psks))
        extracted = suite.kdf.extract(zeros(suite), psk)
        psk_input = expand_with_label(suite, extracted, "derived psk", label, suite.kdf.size)
        secret = suite.kdf.extract(psk_input, secret)
    return secret
