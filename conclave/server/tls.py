"""TLS: the server's certificate, what is wrong with it, changing it while clients are served, and handshakes."""

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
"""What OpenSSL says of the dates of a certificate, by the code of its verification."""


class TlsError(Exception):
    """The certificate or its key cannot be used. The message names the setting and the file, and says what to do."""


class Tls:
    """What connections are secured by. A certificate counts for all handshakes that begin after ``replace``."""

    def __init__(self, chosen: ssl.SSLContext) -> None:
        """``chosen``: what the first handshakes use, and what listeners are given."""
        self.context = self._chosen = chosen
        # Asked in each handshake. Loaded into the context that is there, a new certificate would leave one with a key
        # of another kind beside it, and clients that prefer that kind would still get the old one.
        chosen.sni_callback = self._choose

    def replace(self, chosen: ssl.SSLContext) -> None:
        """Use another certificate from here on. Open connections go on as they are."""
        self._chosen = chosen

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._chosen is not self.context:
            connection.context = self._chosen


def load_context(config: Config) -> ssl.SSLContext | None:
    """Return a context with the certificate of a configuration; None if it has none. Raises TlsError.

    ``warn_if_invalid`` warns of a certificate that has expired, or is not valid yet.
    """
    certificate, key = config.tls_cert_path, config.tls_key_path
    if not (certificate and key):
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for setting, path in (("tls_cert_path", certificate), ("tls_key_path", key)):
        _require_pem(setting, path)
    try:
        # Without the empty password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise TlsError(_explain(certificate, key, error)) from error
    return context


def warn_if_invalid(context: ssl.SSLContext, config: Config) -> None:
    """Warn of the certificate in ``context`` if it has expired, or is not valid yet."""
    certificate = config.tls_cert_path
    if certificate and (doubt := _date_error(context, certificate)):
        log.warning("certificate_not_valid", path=certificate, reason=f"{doubt}: clients will refuse it; renew it")


def _require_pem(setting: str, path: str) -> None:
    """Raise TlsError unless a file can be read, again at each reload, and has a block of PEM."""
    try:
        if is_stream(Path(path)):
            raise TlsError(f"{setting}: {path}: is no file: name one that can be read again")
        text = Path(path).read_bytes()
    except OSError as error:
        reason = str(error.strerror)
        if isinstance(error, PermissionError):
            reason += ": let the user that runs the server read it"
        raise TlsError(f"{setting}: {path}: {reason}") from error
    if b"-----BEGIN " in text:
        return
    what = "certificate" if setting == "tls_cert_path" else "private key"
    other = " (it seems to be DER: convert it by openssl)" if text[:1] == b"\x30" else ""
    held = f"holds no {what} in PEM" if setting == "tls_cert_path" else f"cannot be used: it holds no {what} in PEM"
    raise TlsError(f"{setting}: {path}: {held}{other}")


def _explain(certificate: str, key: str, error: Exception) -> str:
    """Return which of the two files cannot be used, and why. OpenSSL does not say which."""
    reason = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
    try:
        return _diagnose(certificate, key, reason)
    except OSError as gone:
        return f"tls_cert_path, tls_key_path: {certificate}, {key}: are being replaced just now: {gone.strerror}"


def _diagnose(certificate: str, key: str, reason: str) -> str:
    """Return what is wrong with two files that OpenSSL has refused for ``reason``. Raises OSError."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
    except ssl.SSLError:
        swapped = ": it holds a private key; are the two paths swapped?" if _holds_key(certificate) else ""
        return f"tls_cert_path: {certificate}: holds no certificate in PEM{swapped}"
    if "mismatch" in reason:
        return f"tls_key_path: {key}: is not the key of {certificate}: name the key that the certificate was made for"
    if b"ENCRYPTED" in Path(key).read_bytes():
        return f"tls_key_path: {key}: cannot be used: it is encrypted; remove its passphrase (openssl pkey)"
    if not _holds_key(key):
        return f"tls_key_path: {key}: cannot be used: it holds no private key"
    if "ee key too small" in reason or "md too weak" in reason:
        return f"tls_cert_path: {certificate}: cannot be used: {reason}: make a new one"
    return f"tls_key_path: {key}: cannot be used: {reason}"


def _holds_key(path: str) -> bool:
    return b"PRIVATE KEY-----" in Path(path).read_bytes()


def _date_error(context: ssl.SSLContext, certificate: str) -> str:
    """Return why clients will not accept a certificate because of its dates, "" if they will.

    A client in this process that trusts this very certificate looks at it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(certificate)
    except OSError:
        return ""  # the file was replaced just now: what it was is loaded, and serves
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
    end: socket.socket,
    context: ssl.SSLContext,
    protocol: asyncio.BufferedProtocol,
    note_below: Callable[[asyncio.Transport], None],
) -> None:
    """Do the handshake on an accepted socket, and start ``protocol``.

    ``note_below`` gets the transport below the TLS layer before the protocol begins.
    Made by asyncio in one step, the layer would hide that transport, which alone knows what the system has not taken
    yet. The client may take a minute. If this raises OSError or is cancelled, ``end`` is closed.
    """
    loop = asyncio.get_running_loop()
    below, early = await loop.connect_accepted_socket(_EarlyData, end)
    try:
        loop.call_soon(early.pass_on, below)  # after the first step of start_tls, before more is read
        secured = await loop.start_tls(below, early, context, server_side=True)
    except BaseException:
        below.abort()
        raise
    if secured is None:
        raise ConnectionAbortedError("the client is gone")
    secured.set_protocol(protocol)
    early.successor = protocol
    note_below(below)
    protocol.connection_made(secured)
    early.pass_on(secured)


class _EarlyData(asyncio.Protocol):
    """Holds bytes that arrive before the TLS layer is there, and decrypted ones before the connection is."""

    def __init__(self) -> None:
        self.successor: asyncio.BufferedProtocol | None = None
        self._held = b""

    def data_received(self, data: bytes) -> None:
        self._held += data

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection may have started since this was scheduled."""
        if self.successor:
            self.successor.connection_lost(exc)

    def pass_on(self, transport: asyncio.Transport) -> None:
        """Give what is held to the transport's present protocol."""
        rest, self._held = self._held, b""
        while rest and not transport.is_closing():
            successor = cast(asyncio.BufferedProtocol, transport.get_protocol())
            buffer = memoryview(successor.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            successor.buffer_updated(count)
            rest = rest[count:]
