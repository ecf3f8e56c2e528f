"""Reads the expiry of a certificate file. Python's ssl module offers this only for a connection's peer."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _SHORT_TIME = 0xA0, 0x17


def expiry(path: str | None) -> int | None:
    """Return ``expires_at`` of an optional path; None without a path."""
    return expires_at(Path(path)) if path else None


def expires_at(path: Path) -> int | None:
    """Return the Unix second after which the first certificate of a PEM file is not valid; None if unreadable.

    The first certificate is the server's own; the chain follows it.
    """
    try:
        text = path.read_text(encoding="ascii", errors="replace")
        pem = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        return _not_after(ssl.PEM_cert_to_DER_cert(pem))
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> int:
    """Return notAfter of a DER certificate, as a Unix second. Raises ValueError or IndexError.

    The fields are those of RFC 5280: version (unless 1), serial number, algorithm, issuer, validity (two times).
    """
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    for _ in range(3 if tag == _VERSION else 2):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, rest = _element(validity)
    tag, encoded_time, _ = _element(rest)
    text = encoded_time.decode("ascii")
    if tag == _SHORT_TIME:  # years from 1950 to 2049, in two digits
        text = ("19" if text[:2] >= "50" else "20") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first element, and the bytes after it."""
    tag, length, begin = der[0], der[1], 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[2:begin], "big")
    if begin + length > len(der):
        raise ValueError("cut off")
    return tag, der[begin : begin + length], der[begin + length :]
