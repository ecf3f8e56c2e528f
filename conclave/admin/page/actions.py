"""The actions of the page, which commands use too. Each is recorded in the audit log."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from aiohttp import web

from conclave import app_keys
from conclave.actions import accounts, holds, users
from conclave.actions.evidence import log_cleanup_order
from conclave.actions.holds import MAX_REASON_LENGTH
from conclave.actions.lookup import id_of
from conclave.errors import BadRequestError, ConflictError, UnavailableError
from conclave.health.parts import CleanupState, Phase
from conclave.logs.setup import get_logger
from conclave.store.archive import moves
from conclave.store.resources.audit import AuditAction

log = get_logger(__name__)

DRY_RUN_TIMEOUT_SECONDS = 120.0
"""The longest wait for a dry run. The worker starts it after the current run, which may take longer."""

Form = Mapping[str, str]


class CleanupWorker(Protocol):
    """Runs cleanup: the supervisor of the worker."""

    def run_now(self) -> bool:
        """Order a run of each job; return False if there is no worker."""

    async def count(self) -> dict[str, Any] | None:
        """Return the report of a dry run; None if there is no worker."""


class PageActions:
    """Performs the actions of forms. Each returns a sentence for the operator.

    Raises ApiError, whose message says why nothing was done.
    """

    def __init__(self, client_app: web.Application, worker: CleanupWorker | None) -> None:
        """``client_app``: the clients' application. ``worker``: runs cleanup; None: there is no worker."""
        self._client_app = client_app
        self._worker = worker
        self.forms: Mapping[str, Callable[[str, Form], Awaitable[str]]] = {
            "run": self._run,
            "hold": self._hold,
            "release": self._release,
            "disable": self._disable,
            "enable": self._enable,
        }

    def require_serving(self) -> None:
        """Raise UnavailableError unless the server is serving."""
        if self._client_app[app_keys.HEALTH].phase is not Phase.SERVING:
            raise UnavailableError("the server is starting or stopping", seconds=5)

    async def count(self) -> dict[str, Any]:
        """Return the report of a dry run of all jobs. Raises ConflictError if there is no worker, or it is busy."""
        try:
            async with asyncio.timeout(DRY_RUN_TIMEOUT_SECONDS):
                report = await self._worker.count() if self._worker else None
        except TimeoutError:
            raise ConflictError("the worker was busy for 2 minutes: try again later") from None
        if report is None:
            raise ConflictError(_NO_WORKER)
        return report

    async def _run(self, actor: str, _: Form) -> str:
        if not self._worker or self._client_app[app_keys.HEALTH].cleanup is CleanupState.NONE:
            raise ConflictError(_NO_WORKER)
        write = self._client_app[app_keys.CLOCK_WATCH].write
        # First, so that each run has an entry.
        await write(log_cleanup_order, self._client_app[app_keys.CONTEXT], actor)
        if not self._worker.run_now():
            raise ConflictError(_NO_WORKER)
        is_in_run = self._client_app[app_keys.HEALTH].is_in_run
        return f"Cleanup runs {'again as soon as the current run has ended' if is_in_run else 'now'}."

    async def _hold(self, actor: str, form: Form) -> str:
        reason, name_or_id = form.get("reason", "").strip(), form.get("name", "").strip()
        if not 1 <= len(reason) <= MAX_REASON_LENGTH:
            raise BadRequestError(f"the reason must have 1 to {MAX_REASON_LENGTH:,} characters")
        find = {"group": holds.find_group, "user": holds.find_user}.get(form.get("covers", ""))
        if find is None:
            raise BadRequestError("a hold covers a group or a user")
        store = self._client_app[app_keys.STORE]
        subject = await store.read(find, name_or_id)
        context = self._client_app[app_keys.CONTEXT]
        hold = await self._client_app[app_keys.CLOCK_WATCH].write(holds.add, context, actor, subject, reason)
        warning = ""
        if await store.read(moves.is_in_use):
            warning = " A run in progress may still erase archived messages that it has already selected."
        return f"Hold {hold.hold_id} is in force: it covers {_described(hold)}.{warning}"

    async def _release(self, actor: str, form: Form) -> str:
        number = form.get("hold", "").strip()
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            raise BadRequestError("enter the number of the hold")
        write = self._client_app[app_keys.CLOCK_WATCH].write
        hold = await write(holds.release, self._client_app[app_keys.CONTEXT], actor, int(number))
        return f"Hold {hold.hold_id} is released: it covered {_described(hold)}."

    async def _disable(self, actor: str, form: Form) -> str:
        name = await self._change(actor, form, AuditAction.ACCOUNT_DISABLED)
        return f"{name} is disabled, and logged out."

    async def _enable(self, actor: str, form: Form) -> str:
        name = await self._change(actor, form, AuditAction.ACCOUNT_ENABLED)
        return f"{name} is enabled, and may log in."

    async def _change(self, actor: str, form: Form, action: AuditAction) -> str:
        """Disable or enable an account; return its name."""
        name_or_id = form.get("name", "").strip()
        user_id = id_of(name_or_id)
        find: Any = users.by_id if user_id else users.by_name
        user = await self._client_app[app_keys.STORE].read(find, user_id or name_or_id)
        change = accounts.disable if action is AuditAction.ACCOUNT_DISABLED else accounts.enable
        write = self._client_app[app_keys.CLOCK_WATCH].write
        await write(accounts.audited, self._client_app[app_keys.CONTEXT], actor, action, change, user.user_id)
        log.info("account_changed", action="disable" if action is AuditAction.ACCOUNT_DISABLED else "enable")
        return str(user.username)


_NO_WORKER = "there is no cleanup worker now: the part cleanup of health, or the server's log, says why"


def _described(hold: holds.Hold) -> str:
    subject = (
        f"{hold.name} ({UUID(bytes=hold.subject_id)})" if hold.name else f"{UUID(bytes=hold.subject_id)} (deleted)"
    )
    return f"all messages of the group {subject}" if hold.covers == "group" else f"all that the user {subject} has sent"
