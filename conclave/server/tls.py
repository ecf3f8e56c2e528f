"""TLS: loading, checking and replacing the server's certificate, and handshakes."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from conclave.config.settings import Config
from conclave.logs.setup import get_logger
from conclave.system.streams import is_stream

log = get_logger(__name__)

_DATE_ERRORS = {9: "is not valid yet", 10: "has expired"}
"""Errors of a certificate's dates, by OpenSSL's verification code."""


class TlsError(Exception):
    """The certificate or its key is unusable. The message names the setting, the file and the remedy."""


class Tls:
    """The TLS context of the listener. ``replace`` changes the certificate for later handshakes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        """``context``: the context of the listener and of the first handshakes."""
        self.context = self._current = context
        # Called in each handshake. Loading the new certificate into the same context would keep an old one with another
        # key type, which some clients prefer.
        context.sni_callback = self._select

    def replace(self, context: ssl.SSLContext) -> None:
        """Use another context for new handshakes. Open connections are not affected."""
        self._current = context

    def _select(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._current is not self.context:
            connection.context = self._current


def load_context(config: Config) -> ssl.SSLContext | None:
    """Load the certificate of a configuration into a new context; None without TLS. Raises TlsError.

    It does not check the dates of the certificate, see ``warn_if_invalid``.
    """
    certificate, key = config.tls_cert_path, config.tls_key_path
    if not (certificate and key):
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for setting, path in (("tls_cert_path", certificate), ("tls_key_path", key)):
        _require_pem(setting, path)
    try:
        # An empty password keeps OpenSSL from asking on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise TlsError(_explain(certificate, key, error)) from error
    return context


def warn_if_invalid(context: ssl.SSLContext, config: Config) -> None:
    """Log a warning if the certificate in ``context`` has expired or is not valid yet."""
    certificate = config.tls_cert_path
    if certificate and (date_error := _date_error(context, certificate)):
        log.warning("certificate_not_valid", path=certificate, reason=f"{date_error}: clients will refuse it; renew it")


def _require_pem(setting: str, path: str) -> None:
    """Raise TlsError unless a path is a readable regular file in PEM."""
    try:
        if is_stream(Path(path)):
            raise TlsError(f"{setting}: {path}: is not a regular file: name one, since reloads read it again")
        text = Path(path).read_bytes()
    except OSError as error:
        reason = str(error.strerror)
        if isinstance(error, PermissionError):
            reason += ": let the user that runs the server read it"
        raise TlsError(f"{setting}: {path}: {reason}") from error
    if b"-----BEGIN " in text:
        return
    content = "certificate" if setting == "tls_cert_path" else "private key"
    hint = " (it seems to be DER: convert it with openssl)" if text[:1] == b"\x30" else ""
    problem = f"contains no {content} in PEM" if setting == "tls_cert_path" else f"cannot be used: no {content} in PEM"
    raise TlsError(f"{setting}: {path}: {problem}{hint}")


def _explain(certificate: str, key: str, error: Exception) -> str:
    """Return which of the two files is unusable, and why. OpenSSL does not say which."""
    reason = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
    try:
        return _diagnose(certificate, key, reason)
    except OSError as read_error:
        return f"tls_cert_path, tls_key_path: {certificate}, {key}: are being replaced: {read_error.strerror}"


def _diagnose(certificate: str, key: str, reason: str) -> str:
    """Return the fault of two files that OpenSSL rejected for ``reason``. Raises OSError."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
    except ssl.SSLError:
        hint = ": it contains a private key; are the two paths swapped?" if _holds_key(certificate) else ""
        return f"tls_cert_path: {certificate}: contains no certificate in PEM{hint}"
    if "mismatch" in reason:
        return f"tls_key_path: {key}: does not match {certificate}: name the key of that certificate"
    if b"ENCRYPTED" in Path(key).read_bytes():
        return f"tls_key_path: {key}: cannot be used: it is encrypted; remove its passphrase (openssl pkey)"
    if not _holds_key(key):
        return f"tls_key_path: {key}: cannot be used: it contains no private key"
    if "ee key too small" in reason or "md too weak" in reason:
        return f"tls_cert_path: {certificate}: cannot be used: {reason}: make a new one"
    return f"tls_key_path: {key}: cannot be used: {reason}"


def _holds_key(path: str) -> bool:
    return b"PRIVATE KEY-----" in Path(path).read_bytes()


def _date_error(context: ssl.SSLContext, certificate: str) -> str:
    """Return why clients will reject a certificate because of its dates, "" if they will not.

    A handshake in memory with a client that trusts only this certificate shows it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(certificate)
    except OSError:
        return ""  # the file is being replaced; the loaded certificate is used
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)
    for side in (*sides, *sides):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return _DATE_ERRORS.get(error.verify_code, "")
        except ssl.SSLError:
            return ""
    return ""


async def handshake(
    client_socket: socket.socket,
    context: ssl.SSLContext,
    protocol: asyncio.BufferedProtocol,
    set_raw_transport: Callable[[asyncio.Transport], None],
) -> None:
    """Do the handshake on an accepted socket, and start ``protocol``.

    ``set_raw_transport``: called with the transport below the TLS layer before the protocol starts. That transport
    knows how many bytes the system has not accepted; asyncio's own TLS setup would hide it. The handshake may take a
    minute. If this raises OSError or is cancelled, ``client_socket`` is closed.
    """
    loop = asyncio.get_running_loop()
    raw_transport, early_data = await loop.connect_accepted_socket(_EarlyData, client_socket)
    try:
        loop.call_soon(early_data.pass_on, raw_transport)  # after the first step of start_tls, before the next read
        tls_transport = await loop.start_tls(raw_transport, early_data, context, server_side=True)
    except BaseException:
        raw_transport.abort()
        raise
    if tls_transport is None:
        raise ConnectionAbortedError("the client is gone")
    tls_transport.set_protocol(protocol)
    early_data.successor = protocol
    set_raw_transport(raw_transport)
    protocol.connection_made(tls_transport)
    early_data.pass_on(tls_transport)


class _EarlyData(asyncio.Protocol):
    """Buffers bytes that arrive before the TLS layer or the connection is set up."""

    def __init__(self) -> None:
        self.successor: asyncio.BufferedProtocol | None = None
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the connection, if that has started."""
        if self.successor:
            self.successor.connection_lost(exc)

    def pass_on(self, transport: asyncio.Transport) -> None:
        """Pass the buffered bytes to the current protocol of the transport."""
        data, self._data = self._data, b""
        while data and not transport.is_closing():
            successor = cast(asyncio.BufferedProtocol, transport.get_protocol())
            buffer = memoryview(successor.get_buffer(len(data)))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            successor.buffer_updated(count)
            data = data[count:]
