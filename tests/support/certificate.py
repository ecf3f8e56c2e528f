"""Certificates for servers that speak TLS, made by openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest

TLS = 'tls_cert_path = "cert.pem"\ntls_key_path = "key.pem"\n'
"""The settings of a server with the certificate of ``make_certificate``."""


def make_certificate(folder: Path, certificate: str = "cert.pem", key: str = "key.pem") -> None:
    """Make a certificate that signs itself, for a day. Without openssl the test is skipped."""
    if not shutil.which("openssl"):
        pytest.skip("makes its certificate with openssl")
    subject = ("-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1")
    files = ("-keyout", key, "-out", certificate)
    subprocess.run(["openssl", "req", "-x509", *subject, *files], cwd=folder, check=True, capture_output=True)
