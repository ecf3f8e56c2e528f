"""Takes over a changed configuration while the server runs: of each setting, whether and how."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self

from aiohttp import web

from conclave import app_keys
from conclave.actions.quotas import quotas_in, quotas_of
from conclave.admin.access import Guard, TokenError
from conclave.config.load import BUILT_IN, ConfigError, find_config, load_config
from conclave.config.settings import Config, setting_names
from conclave.config.warnings import doubts
from conclave.health import background
from conclave.health.parts import Health, HealthPart
from conclave.logs.setup import configure_logging, get_logger
from conclave.retention import marks
from conclave.retention.durations import duration_text
from conclave.server import start_check
from conclave.server.supervise import Supervisor
from conclave.server.tls import Tls, TlsError, context_of, log_doubt
from conclave.store.engine.faults import StoreError
from conclave.store.resources.state import PolicyChangeError, PolicyFrozenError
from conclave.system import certificate
from conclave.system.notify import ServiceManager
from conclave.system.streams import is_stream

log = get_logger(__name__)


class Way(Enum):
    """How a setting is taken over."""

    POLICY = "as at a start with another policy, in one transaction; without a worker meanwhile"
    WORKER = "the worker goes by it from its next run on"
    SERVER = "the server goes by it from the next request on"
    TLS = "the next handshake uses it"
    RESTART = "only a start takes it over"


WAYS: Mapping[str, Way] = {
    "listen_address": Way.RESTART,
    "listen_port": Way.RESTART,
    "database_path": Way.RESTART,
    "data_path": Way.RESTART,
    "token_ttl_seconds": Way.RESTART,
    "invite_ttl_seconds": Way.POLICY,
    "message_retention": Way.POLICY,
    "cleanup_interval": Way.WORKER,
    "registration_enabled": Way.SERVER,
    "registration_token": Way.SERVER,
    "auth_header": Way.RESTART,
    "tls_cert_path": Way.TLS,
    "tls_key_path": Way.TLS,
    "retention.enabled": Way.POLICY,
    "retention.default_policy": Way.POLICY,
    "retention.limits": Way.POLICY,
    "retention.groups": Way.POLICY,
    "retention.fetch_confirmation": Way.RESTART,
    "retention.fetch_hold_limit": Way.POLICY,
    "retention.retain_commits": Way.POLICY,
    "retention.self_destruct_max_age": Way.POLICY,
    "retention.admins_may_redact": Way.SERVER,
    "retention.keep_receipts": Way.WORKER,
    "retention.keep_audit": Way.WORKER,
    "retention.purge_jobs": Way.WORKER,
    "cleanup.engine": Way.RESTART,
    "cleanup.max_run_time": Way.WORKER,
    "cleanup.disk_reserve": Way.RESTART,
    "cleanup.keep_warm": Way.WORKER,
    "spark.master": Way.RESTART,
    "spark.driver_memory": Way.RESTART,
    "archive.after": Way.RESTART,
    "archive.path": Way.RESTART,
    "archive.margin": Way.RESTART,
    "archive.erase_delay": Way.RESTART,
    "archive.rewrite_after": Way.RESTART,
    "web.allowed_origins": Way.SERVER,
    "limits.trusted_proxies": Way.SERVER,
    "limits.login_failures": Way.SERVER,
    "limits.login_failures_per_address": Way.SERVER,
    "limits.registrations_per_address": Way.SERVER,
    "limits.registration_failures_per_address": Way.SERVER,
    "limits.login_window": Way.SERVER,
    "limits.user_sends_per_minute": Way.SERVER,
    "limits.group_sends_per_minute": Way.SERVER,
    "limits.user_stored_bytes": Way.SERVER,
    "limits.group_stored_bytes": Way.SERVER,
    "limits.group_stored_messages": Way.SERVER,
    "limits.user_groups": Way.SERVER,
    "limits.response_memory": Way.SERVER,
    "admin.listen_address": Way.RESTART,
    "admin.listen_port": Way.RESTART,
    "admin.token": Way.RESTART,
    "admin.token_file": Way.RESTART,
    "admin.hosts": Way.RESTART,
    "admin.allow_actions": Way.RESTART,
    "ledger.path": Way.RESTART,
    "ledger.keep": Way.WORKER,
    "keys.path": Way.RESTART,
    "keys.copies": Way.WORKER,
    "log.level": Way.SERVER,
    "log.format": Way.SERVER,
    "log.requests": Way.SERVER,
}
"""Every setting, and how it is taken over. ``follow`` in this module is where that of the server happens."""

REFUSED = "nothing has changed: the log says why the last reload was refused"

_SETS_NOTHING = "sets nothing, as a file that is just being written; if the defaults are meant, restart the server"
"""Registration would be open, quotas and policies gone, until the operator finds out."""

_SECRET = ("token",)
"""The values of settings whose names end in one of these are in no log."""


class _Renewed(NamedTuple):
    """A certificate that was read again, and the Unix second after which it is not valid, if that is known."""

    context: ssl.SSLContext
    ends: int | None


class Reloader:
    """Reads the configuration again whenever it is asked to, while the block lasts.

    One reload is under way at a time. However often it is asked meanwhile, one more follows.
    """

    def __init__(
        self,
        app: web.Application,
        supervisor: Supervisor,
        tls: Tls | None,
        source: Path | None,
        again: asyncio.Event,
        manager: ServiceManager,
        guard: Guard,
    ) -> None:
        """``source``: the file to read; None where the start has found none. ``again``: set to ask for a reload.

        ``manager`` is told when a reload begins and ends. ``guard`` has the token that operators go by.
        """
        self._app = app
        self._health: Health = app[app_keys.HEALTH]
        self._guard = guard
        self._supervisor = supervisor
        self._tls = tls
        # Not looked for again: while the file is being replaced, other settings must not count for a moment.
        self._source = source
        self._again = again
        self._manager = manager
        self._adopting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to wait for being asked."""
        self._waiting = background.running(self._health, HealthPart.CONFIGURATION, self._keep_reloading)
        await self._waiting.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop. A reload under way is broken off if it has not begun to change anything yet, or else finished."""
        await self._waiting.__aexit__(None, None, None)
        if self._adopting and not self._adopting.done():
            [failure] = await asyncio.gather(self._adopting, return_exceptions=True)
            if failure:
                self._refuse(str(failure).splitlines())

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
        """Take over what the file says now; tell whether it was. Faults are logged, and then nothing has changed."""
        try:
            former = self._app[app_keys.IN_FORCE].config
            read, renewed, has_same_token = await asyncio.to_thread(self._read, former)
            await self._log_warnings(read)
            config = taken_over(former, read, has_tls=bool(self._tls))
            self._adopting = asyncio.create_task(self._adopt(former, config, renewed))
            await asyncio.shield(self._adopting)
        except ConfigError as error:
            self._refuse(error.faults)
        except (TlsError, TokenError, PolicyChangeError, PolicyFrozenError, StoreError) as error:
            self._refuse(str(error).splitlines())
        else:
            self._health.mend(HealthPart.CONFIGURATION)
            left = differing(config, read)
            if not has_same_token and not {"admin.token", "admin.token_file"} & set(left):
                left.append("admin.token_file")  # of the same name, with another token in it
            if left:
                log.warning("needs_restart", settings=left)
            changed = described(former, config)
            if changed or renewed or not left:
                log.info("reloaded", changed=changed, certificate="read again" if renewed else "none")
            return True
        return False

    def _refuse(self, faults: list[str]) -> None:
        for fault in faults:
            log.error("reload_refused", fault=fault)
        self._note_refusal(faults)

    def _note_refusal(self, faults: list[str]) -> None:
        """Have health show that the file is not in force, until a reload succeeds or the server is restarted."""
        self._health.fault(
            HealthPart.CONFIGURATION,
            f"the last reload was refused, and the former settings are in force: {'; '.join(faults)}",
        )

    async def _log_warnings(self, config: Config) -> None:
        """Log what ``config`` may do to the groups that are there, and what its operator may not expect."""
        with suppress(StoreError):  # the watch of the storage tells of that
            in_use = await self._app[app_keys.STORE].read(marks.given, config.policy)
            for doubt in doubts(config, in_use):
                log.warning("doubtful_setting", **doubt._asdict())

    def _read(self, former: Config) -> tuple[Config, _Renewed | None, bool]:
        """Read the settings, the certificate, and whether operators go by the token that is set.

        ``former``: the settings in force. Raises ConfigError, TlsError and TokenError. What the next start would refuse
        is a ConfigError, also of a setting that only a start takes over.
        """
        source = self._source or find_config()
        if source:
            _require_file(source)
        read = load_config(source, lambda name, means: log.warning("ambiguous_setting", setting=name, means=means))
        if read == Config() != former:
            raise ConfigError(str(source or BUILT_IN), [_SETS_NOTHING])
        if found := start_check.refusals(read, None):
            raise ConfigError(str(source or BUILT_IN), [each.says for each in found])
        context = context_of(read) if self._tls else None
        if context:
            log_doubt(context, read)
        renewed = _Renewed(context, certificate.expiry(read.tls_cert_path)) if context else None
        return read, renewed, self._guard.goes_by(read.admin)

    async def _adopt(self, former: Config, config: Config, renewed: _Renewed | None) -> None:
        """Go by ``config`` from here on: all of it in one step of the event loop.

        Raises PolicyChangeError, PolicyFrozenError or StoreError; then nothing has changed.
        """

        def adopt() -> None:
            follow(self._app, config)
            self._supervisor.follow(config)
            if self._tls and renewed:
                self._tls.replace(renewed.context)
                self._app[app_keys.IN_FORCE].certificate_ends = renewed.ends

        if config.policy == former.policy:
            adopt()
            return
        async with self._supervisor.paused():
            await self._app[app_keys.CLOCK_WATCH].change(config.policy, adopt)


def follow(app: web.Application, config: Config) -> None:
    """Have everything in this process that holds settings go by ``config``: at once, and without a way to fail."""
    former = app[app_keys.IN_FORCE].config
    app[app_keys.IN_FORCE].config = config
    if config.policy != former.policy:
        app[app_keys.CONTEXT].policy = config.policy
    app[app_keys.THROTTLE].follow(config.limits)
    if quotas_in(config.limits) != quotas_in(former.limits):
        # What was sent in the last minute does not count against the new ones.
        app[app_keys.CONTEXT].quotas = quotas_of(config.limits, app[app_keys.CLOCK])
    app[app_keys.CROSS_ORIGIN].follow(config.web.allowed_origins)
    app[app_keys.BUDGET].size = config.limits.response_bytes
    if config.log != former.log:
        configure_logging(config.log)


def taken_over(former: Config, read: Config, *, has_tls: bool) -> Config:
    """Return ``former`` with what can be taken over of ``read``. TLS can be neither begun nor ended."""
    keep = {name for name, way in WAYS.items() if way is Way.RESTART}
    if has_tls != bool(read.tls_cert_path):
        keep |= {name for name, way in WAYS.items() if way is Way.TLS}
    kept: dict[str, Any] = {}
    for name in keep:
        section, _, inner = name.rpartition(".")
        kept.setdefault(section, {})[inner] = _value(former, name)
    at_top = kept.pop("", {})
    sections = {name: replace(getattr(read, name), **values) for name, values in kept.items()}
    return replace(read, **at_top, **sections)


def differing(one: Config, other: Config) -> list[str]:
    """Return the names of the settings that differ."""
    return [name for name in setting_names() if _value(one, name) != _value(other, name)]


def described(former: Config, config: Config) -> dict[str, str]:
    """Return in words which settings have changed: from what, to what."""
    found = {}
    for name in differing(former, config):
        values = [_value(each, name) for each in (former, config)]
        is_shown = not name.endswith(_SECRET) and all(isinstance(each, str | int | None) for each in values)
        found[name] = " -> ".join(_in_words(name, each) for each in values) if is_shown else "changed"
    return found


_LENGTHS = (
    *("message_retention", "cleanup_interval", "cleanup.max_run_time", "cleanup.keep_warm"),
    *("limits.login_window", "retention.fetch_hold_limit", "retention.self_destruct_max_age"),
    *("retention.keep_receipts", "retention.keep_audit", "ledger.keep"),
)
"""The settings that are written as durations."""


def _in_words(name: str, value: Any) -> str:
    if name in _LENGTHS:
        return duration_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _value(config: Config, name: str) -> Any:
    section, _, inner = name.rpartition(".")
    return getattr(getattr(config, section) if section else config, inner)


def _require_file(source: Path) -> None:
    """Raise ConfigError for what can be read only once, as a pipe: a second reader would wait, or find nothing."""
    with suppress(OSError):  # load_config tells of it
        if is_stream(source):
            raise ConfigError(str(source), ["cannot be read again: it is no file; start the server with one"])
