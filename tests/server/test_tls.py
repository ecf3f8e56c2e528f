"""Reading the certificate while somebody replaces its files."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from conclave.config.settings import Config
from conclave.server.tls import TlsError, load_context
from tests.support.certificate import make_certificate


def _config(folder: Path) -> Config:
    make_certificate(folder)
    return Config(tls_cert_path=str(folder / "cert.pem"), tls_key_path=str(folder / "key.pem"))


def test_files_that_go_before_they_are_loaded_are_one_line_for_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, load = _config(tmp_path), ssl.SSLContext.load_cert_chain

    def load_too_late(context: ssl.SSLContext, *args: Any, **kwargs: Any) -> None:
        (tmp_path / "cert.pem").unlink()
        load(context, *args, **kwargs)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_too_late)
    with pytest.raises(TlsError, match=r"cert\.pem, .*key\.pem: are being replaced"):
        load_context(config)


def test_a_pair_that_was_loaded_serves_though_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, load = _config(tmp_path), ssl.SSLContext.load_cert_chain

    def load_in_time(context: ssl.SSLContext, *args: Any, **kwargs: Any) -> None:
        load(context, *args, **kwargs)
        (tmp_path / "cert.pem").unlink()

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_in_time)
    assert load_context(config) is not None
