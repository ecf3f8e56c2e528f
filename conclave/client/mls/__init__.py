"""MLS, the protocol of RFC 9420, over the primitives of ``cryptography``. It imports nothing else of Conclave."""

from conclave.client.mls.credentials import Credential, Extension, basic
from conclave.client.mls.crypto import fingerprint
from conclave.client.mls.errors import (
    ForgedError,
    InvalidError,
    LimitError,
    MalformedError,
    MlsError,
    NotForUsError,
    NotFromHereError,
    OwnMessageError,
    ReplayedError,
    StaleError,
    StateError,
)
from conclave.client.mls.framing import decode_message, encode_message
from conclave.client.mls.group import Commitment, Group
from conclave.client.mls.key_packages import KeyPackage, OwnKeyPackage, create_key_package
from conclave.client.mls.receiving import ApplicationMessage, CommitApplied, ProposalArrived, Received
from conclave.client.mls.state import Member
from conclave.client.mls.suites import SUITES, CipherSuite, suite_of
from conclave.client.mls.validation import Policy

__all__ = [
    "SUITES",
    "ApplicationMessage",
    "CipherSuite",
    "CommitApplied",
    "Commitment",
    "Credential",
    "Extension",
    "ForgedError",
    "Group",
    "InvalidError",
    "KeyPackage",
    "LimitError",
    "MalformedError",
    "Member",
    "MlsError",
    "NotForUsError",
    "NotFromHereError",
    "OwnKeyPackage",
    "OwnMessageError",
    "Policy",
    "ProposalArrived",
    "Received",
    "ReplayedError",
    "StaleError",
    "StateError",
    "basic",
    "create_key_package",
    "decode_message",
    "encode_message",
    "fingerprint",
    "suite_of",
]
