"""Checks files: their permissions, and the processes that hold their locks."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from conclave.archive.faults import ADVICE
from conclave.archive.files import LOG, log_fault
from conclave.config.settings import KEYS, Config
from conclave.doctor.findings import Finding, note, ok, wrong
from conclave.keys import copying
from conclave.store.engine import faults, path_check
from conclave.store.engine.faults import StoreError
from conclave.system import data_folder, locks
from conclave.system.disk_timeout import run_with_timeout

_OTHERS = 0o077
_WRITERS = 0o022
_SECRET = 0o027
"""Secrets may be readable by a group: that of the server's user, if root owns the files."""


def permissions(config: Config, source: Path | None) -> Iterator[Finding]:
    """Yield findings about permissions. ``source``: the configuration file."""
    private = [config.database.with_name(config.database.name + suffix) for suffix in ("", "-wal", "-shm", ".reserve")]
    vaults = [config.ledger_path, config.keys_path, *(each / KEYS for each in config.vault_copies)]
    folders = [config.data, config.archive_path, config.vault_path]
    secrets = [Path(path) for path in (config.tls_key_path, config.admin.token_file) if path]
    has_secret = bool(config.registration_token or config.admin.token)
    findings = [
        *_too_permissive([*private, *vaults], _OTHERS, "600"),
        *_too_permissive(folders, _OTHERS, "700"),
        *_too_permissive(secrets, _SECRET, "600"),
        *_too_permissive([source] if source else [], _SECRET if has_secret else _WRITERS, "600"),
        *_foreign_owners([config.database, config.data]),
        *_inaccessible(config),
    ]
    yield from findings
    if not findings:
        yield ok("permissions", "only the owner has access to the database, the data directory and the secrets")


def _too_permissive(paths: list[Path], forbidden: int, mode: str) -> Iterator[Finding]:
    for path in paths:
        try:
            permissions = stat.S_IMODE(run_with_timeout(copying.TIMEOUT_SECONDS, path, path.stat).st_mode)
        except FileNotFoundError:
            continue
        except TimeoutError as error:
            yield wrong("permissions", f"{path}: {error.strerror}", "reconnect its disk, or set another path")
            continue
        except OSError as error:
            yield wrong("permissions", f"{path}: {error.strerror}", "run this as the server's user")
            continue
        if permissions & forbidden:
            yield wrong("permissions", f"{path}: others have access (mode {permissions:04o})", f"chmod {mode} {path}")


def _inaccessible(config: Config) -> Iterator[Finding]:
    """Yield findings about files that this user cannot access."""
    for setting, path in (
        ("tls_cert_path", config.tls_cert_path),
        ("tls_key_path", config.tls_key_path),
        ("admin.token_file", config.admin.token_file),
    ):
        if path and not os.access(path, os.R_OK):
            yield wrong(
                "permissions", f"{setting}: {path}: cannot be read", "correct the path, or let this user read it"
            )
    if config.database.is_file():
        try:
            path_check.require_writable(config.database)
        except StoreError as error:
            yield wrong("permissions", str(error), "run the server as the owner of the files")


def _foreign_owners(paths: list[Path]) -> Iterator[Finding]:
    user = os.geteuid()
    for path in paths:
        if path.exists() and path.stat().st_uid != user:
            owner = path.stat().st_uid
            says = f"{path}: belongs to user {owner}, but this is user {user}"
            yield note("permissions", says, f"run Conclave's commands as user {owner}, or chown the file")


def archive_log(config: Config) -> Iterator[Finding]:
    """Yield a finding about the archive's log, if there is one."""
    log = config.archive_path / LOG
    if fault := log_fault(log):
        says = fault.removesuffix(ADVICE)
        remedy = f"a cleanup run, if the power failed; else copy the file from a backup{ADVICE}"
        yield wrong("archive", says, remedy)
    elif log.is_dir():
        yield ok("archive", f"{log}: its entries can be read")


def holders(config: Config) -> dict[str, int | None]:
    """Return the process ids that hold the locks "server", "cleanup" and "data"; None: the lock is free.

    Locks with unknown holders are missing, as on systems other than Linux.
    """
    kernel_locks = faults.held_locks()
    if kernel_locks is None:
        return {}
    database = config.database
    files = {
        "server": database.with_name(database.name + locks.SERVER.suffix),
        "cleanup": database.with_name(database.name + locks.CLEANUP.suffix),
        "data": config.data / data_folder.MARKER,
    }
    return {
        name: next((each.pid for each in faults.of_file(kernel_locks, path) if each.kind == "FLOCK"), None)
        for name, path in files.items()
    }


def is_served(config: Config) -> bool | None:
    """Return whether a server runs on this database; None: unknown."""
    pids = holders(config)
    return bool(pids["server"]) if "server" in pids else None


def held_locks(config: Config) -> Iterator[Finding]:
    """Yield findings about the processes that hold locks on this database."""
    pids = holders(config)
    if any(map(_has_ended, pids.values())):
        pids = holders(config)  # it may have ended after the list was read
    if not pids:
        says = "the kernel's list of locks cannot be read"
        yield note("locks", says, "look for processes with ps")
    for name, is_running in (("server", "a server runs"), ("cleanup", "a cleanup run is in progress")):
        pid = pids.get(name)
        if name not in pids:
            continue
        if pid is None:
            yield ok("locks", f"no process holds the {name}'s lock")
        elif _has_ended(pid):
            says = f"the {name}'s lock was taken by process {pid}, which has ended: its Java process may still hold it"
            yield note("locks", says, "it is released when that ends: ps -eo pid,ppid,args | grep java")
        else:
            yield ok("locks", f"{is_running}: process {pid}")
    if pids.get("data") and not pids.get("server"):
        says = f"{config.data}: a server with another database uses it"
        yield wrong("locks", says, "give each server a data_path of its own")
    writer = faults.write_lock_holder(config.database)
    if writer and writer not in pids.values():
        holder = faults.process_name(writer)
        says = f"{holder} holds the database's write lock: nothing can be stored until it is released"
        yield note("locks", says, "run this again; if it still does, end that process")


def _has_ended(pid: int | None) -> bool:
    """Return whether the process that took a lock has ended. Ids of other machines or namespaces are not positive."""
    return pid is not None and pid > 0 and not Path(f"/proc/{pid}").exists()
