"""Until when a certificate is valid, whoever made it."""

import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from conclave.system.certificate import expires_at


@pytest.mark.parametrize(("days", "kind"), [(1, "rsa:2048"), (20_000, "rsa:2048"), (90, "ec")])
def test_the_end_is_what_openssl_says(tmp_path: Path, days: int, kind: str) -> None:
    chosen = ["-newkey", kind] + (["-pkeyopt", "ec_paramgen_curve:prime256v1"] if kind == "ec" else [])
    made = [*chosen, "-nodes", "-subj", "/CN=localhost", "-days", str(days)]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", *made, *files], check=True, capture_output=True)
    told = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-dateopt", "iso_8601", "-in", tmp_path / "cert.pem"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = expires_at(tmp_path / "cert.pem")
    assert found is not None
    assert found == datetime.fromisoformat(told.strip().partition("=")[2]).timestamp()


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"nothing",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\nMIL///////8=\n-----END CERTIFICATE-----",
        b"\xff\xfe",
    ],
)
def test_what_is_no_certificate_has_no_end(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "cert.pem").write_bytes(held)
    assert expires_at(tmp_path / "cert.pem") is None
    assert expires_at(tmp_path / "none.pem") is None
