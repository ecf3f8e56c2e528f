"""Reloads the certificate and the log level while the server runs. All other settings need a restart."""

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

REFUSED = "the last reload failed, and nothing has changed: see the log"


class Reloader:
    """Reloads the configuration file on request, while the block lasts.

    One reload runs at a time. Requests during a reload cause one more.
    """

    def __init__(
        self,
        config: Config,
        health: Health,
        supervisor: Supervisor,
        tls: Tls | None,
        source: Path | None,
        requested: asyncio.Event,
        manager: ServiceManager,
    ) -> None:
        """``config``: the current settings. ``source``: their file; None if the start found none.

        ``requested``: set it to request a reload. ``manager``: notified when a reload begins and ends.
        """
        self._config = config
        self._health = health
        self._supervisor = supervisor
        self._tls = tls
        # Not searched for again: while the file is being replaced, another one must not be used.
        self._source = source
        self._request_event = requested
        self._manager = manager

    async def __aenter__(self) -> Self:
        """Start to wait for requests."""
        self._reload_context = background.running(self._health, HealthPart.CONFIGURATION, self._keep_reloading)
        await self._reload_context.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop. A reload in progress is cancelled, unless the file was read: then it is complete."""
        await self._reload_context.__aexit__(None, None, None)

    async def _keep_reloading(self) -> None:
        while True:
            await self._request_event.wait()
            self._request_event.clear()
            self._manager.reloading()
            is_applied = False
            try:
                is_applied = await self.reload()
            except Exception as error:
                log.exception("reload_failed")
                self._report_refusal([f"{type(error).__name__}: {error}"])
            self._manager.ready("serving; " + ("the configuration was read again" if is_applied else REFUSED))

    async def reload(self) -> bool:
        """Load the certificate and the log level; return whether that succeeded.

        Errors of the file or the certificate are logged, and nothing changes.
        """
        try:
            new_config, context, expires_at = await asyncio.to_thread(self._read)
        except ConfigError as error:
            self._refuse(error.faults)
            return False
        except TlsError as error:
            self._refuse(str(error).splitlines())
            return False
        if self._tls and context:
            self._tls.replace(context)
            self._health.certificate_ends = expires_at
        if new_config.log.level != self._config.log.level:
            self._config = replace(self._config, log=replace(self._config.log, level=new_config.log.level))
            configure_logging(self._config.log)
            self._supervisor.set_config(self._config)
        self._health.clear_fault(HealthPart.CONFIGURATION)
        log.info("reloaded", logs_from=new_config.log.level, certificate="read again" if context else "none")
        if pending_settings := changed_settings(self._config, new_config):
            log.warning("needs_restart", settings=pending_settings)
        return True

    def _refuse(self, faults: list[str]) -> None:
        for fault in faults:
            log.error("reload_refused", fault=fault)
        self._report_refusal(faults)

    def _report_refusal(self, faults: list[str]) -> None:
        """Set a health fault until a reload succeeds or the server restarts."""
        self._health.set_fault(HealthPart.CONFIGURATION, f"the last reload was refused: {'; '.join(faults)}")

    def _read(self) -> tuple[Config, ssl.SSLContext | None, int | None]:
        """Return the settings, the TLS context, and the Unix second at which the certificate expires.

        The path of the certificate is that of the start. Raises ConfigError and TlsError.
        """
        source = self._source or find_config()
        if source:
            _require_file(source)
        new_config = load_config(source)
        if refusals := start_check.find_refusals(new_config, None):
            raise ConfigError(str(source or BUILT_IN), [each.says for each in refusals])
        context = load_context(self._config)
        if context:
            warn_if_invalid(context, self._config)
        return new_config, context, certificate.expiry(self._config.tls_cert_path)


def changed_settings(config: Config, other: Config) -> list[str]:
    """Return the names of the settings whose values differ."""
    return [name for name in setting_names() if _value(config, name) != _value(other, name)]


def _value(config: Config, name: str) -> Any:
    section, _, inner = name.rpartition(".")
    return getattr(getattr(config, section) if section else config, inner)


def _require_file(source: Path) -> None:
    """Raise ConfigError for a pipe or another stream, which can be read only once."""
    with suppress(OSError):  # load_config reports it
        if is_stream(source):
            raise ConfigError(
                str(source), ["is not a regular file, so it cannot be read again; start the server with a file"]
            )
