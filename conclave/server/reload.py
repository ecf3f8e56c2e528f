"""Reads the certificate and the level of the log again while the server runs. Any other setting takes a restart."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from conclave.config.load import BUILT_IN, ConfigError, find_config, load_config
from conclave.config.settings import Config, setting_names
from conclave.health import background
from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import configure_logging, get_logger
from conclave.server import start_check
from conclave.server.supervise import Supervisor
from conclave.server.tls import Tls, TlsError, load_context, warn_if_invalid
from conclave.system import certificate
from conclave.system.notify import ServiceManager
from conclave.system.streams import is_stream

log = get_logger(__name__)

REFUSED = "nothing has changed: the log says why the last reload was refused"


class Reloader:
    """Reads the configuration file again on each request, while the block lasts.

    One reload runs at a time. Requests that arrive meanwhile are answered by one more.
    """

    def __init__(
        self,
        config: Config,
        health: Health,
        supervisor: Supervisor,
        tls: Tls | None,
        source: Path | None,
        again: asyncio.Event,
        manager: ServiceManager,
    ) -> None:
        """``config``: the settings of the server. ``source``: their file; None where the start has found none.

        ``again``: set to ask for a reload. ``manager``: the service manager, notified when a reload begins and ends.
        """
        self._config = config
        self._health = health
        self._supervisor = supervisor
        self._tls = tls
        # Not looked for again: while the file is being replaced, another one must not count for a moment.
        self._source = source
        self._again = again
        self._manager = manager

    async def __aenter__(self) -> Self:
        """Begin to wait for being asked."""
        self._waiting = background.running(self._health, HealthPart.CONFIGURATION, self._keep_reloading)
        await self._waiting.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop. A reload under way is broken off, unless it has been read: then it has taken place."""
        await self._waiting.__aexit__(None, None, None)

    async def _keep_reloading(self) -> None:
        while True:
            await self._again.wait()
            self._again.clear()
            self._manager.reloading()
            taken = False
            try:
                taken = await self.reload()
            except Exception as error:
                log.exception("reload_failed")
                self._note_refusal([f"{type(error).__name__}: {error}"])
            self._manager.ready("serving; " + ("the configuration was read again" if taken else REFUSED))

    async def reload(self) -> bool:
        """Use the certificate and the level that are there now; return whether they are used.

        Faults of the file or the certificate are logged, and then nothing has changed.
        """
        try:
            read, context, ends = await asyncio.to_thread(self._read)
        except ConfigError as error:
            self._refuse(error.faults)
            return False
        except TlsError as error:
            self._refuse(str(error).splitlines())
            return False
        if self._tls and context:
            self._tls.replace(context)
            self._health.certificate_ends = ends
        if read.log.level != self._config.log.level:
            self._config = replace(self._config, log=replace(self._config.log, level=read.log.level))
            configure_logging(self._config.log)
            self._supervisor.follow(self._config)
        self._health.mend(HealthPart.CONFIGURATION)
        log.info("reloaded", logs_from=read.log.level, certificate="read again" if context else "none")
        if left := changed_settings(self._config, read):
            log.warning("needs_restart", settings=left)
        return True

    def _refuse(self, faults: list[str]) -> None:
        for fault in faults:
            log.error("reload_refused", fault=fault)
        self._note_refusal(faults)

    def _note_refusal(self, faults: list[str]) -> None:
        """Have health show that the file was refused, until a reload succeeds or the server is restarted."""
        self._health.fault(HealthPart.CONFIGURATION, f"the last reload was refused: {'; '.join(faults)}")

    def _read(self) -> tuple[Config, ssl.SSLContext | None, int | None]:
        """Read the settings and the certificate; return also the Unix second after which that is not valid.

        The certificate is read from where the start has read it. Raises ConfigError and TlsError.
        """
        source = self._source or find_config()
        if source:
            _require_file(source)
        read = load_config(source)
        if found := start_check.find_refusals(read, None):
            raise ConfigError(str(source or BUILT_IN), [each.says for each in found])
        context = load_context(self._config)
        if context:
            warn_if_invalid(context, self._config)
        return read, context, certificate.expiry(self._config.tls_cert_path)


def changed_settings(one: Config, other: Config) -> list[str]:
    """Return the names of the settings that differ."""
    return [name for name in setting_names() if _value(one, name) != _value(other, name)]


def _value(config: Config, name: str) -> Any:
    section, _, inner = name.rpartition(".")
    return getattr(getattr(config, section) if section else config, inner)


def _require_file(source: Path) -> None:
    """Raise ConfigError for what can be read only once, as a pipe: a second reader would wait, or find nothing."""
    with suppress(OSError):  # load_config tells of it
        if is_stream(source):
            raise ConfigError(str(source), ["cannot be read again: it is no file; start the server with one"])
