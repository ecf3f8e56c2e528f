"""Prepares the values of the operators' page. Does not read the store."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from conclave import __version__, app_keys
from conclave.admin.page import charts
from conclave.admin.page.snapshot import RULES, PageSnapshot, SendRate
from conclave.admin.sizes import Measurements, Sizes
from conclave.config.settings import Config
from conclave.health.parts import Health, HealthPart
from conclave.logs.lines import about, counted, second, size_text, visible
from conclave.retention.advice import elapsed_text, rounded_text
from conclave.retention.jobs import schedule
from conclave.retention.resolve import lifetime_text
from conclave.store.views.overview import Overview
from conclave.store.views.runs import Run

if TYPE_CHECKING:
    from jinja2 import Environment

CLEANUP_PARTS = (HealthPart.CLEANUP, HealthPart.CLOCK, HealthPart.OVERDUE, HealthPart.LEDGER, HealthPart.ARCHIVE)
"""The parts of health whose faults prevent erasure."""

RUNS_SHOWN = 10

SOON_SECONDS = 14 * 86_400
"""A certificate that expires within two weeks is shown in red."""


@dataclass(frozen=True)
class Sources:
    """The sources of the page's values."""

    client_app: web.Application
    snapshot: PageSnapshot
    sizes: Sizes
    rate: SendRate


def environment() -> "Environment":
    """Return the template environment: values are escaped, and missing ones are errors."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - keeps the start fast

    templates = Environment(
        loader=PackageLoader("conclave.admin.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escape,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        second=second,
        about=about,
        size=size_text,
        lifetime=lifetime_text,
        rule=_rule,
        number=_number,
        span=elapsed_text,
        rounded=rounded_text,
    )
    templates.globals["counted"] = counted
    return templates


def template_values(sources: Sources) -> dict[str, Any]:
    """Return the values for the template."""
    client_app = sources.client_app
    health, config = client_app[app_keys.HEALTH], client_app[app_keys.CONFIG]
    stored, now = sources.snapshot.last, int(time.time())
    return {
        "version": __version__,
        "written_at": now,
        "store": stored,
        "store_fault": sources.snapshot.fault,
        "faults": health.faults,
        "cleanup": _cleanup(health, config, stored, now),
        "chart": sources.snapshot.chart,
        "chart_plane": (charts.WIDTH, charts.HEIGHT, charts.LEFT, charts.BOTTOM),
        "rules": RULES,
        "last_runs": [_run(each) for each in stored.runs[:RUNS_SHOWN]] if stored else [],
        "bytes": list(_bytes(sources.sizes.last, stored)),
        "streams": client_app[app_keys.EVENTS].wheel.size,
        "rate": sources.rate.rate,
        "certificate": _certificate(client_app[app_keys.HEALTH].certificate_ends, sources.snapshot.renewed_ends, now),
        "advice": sources.snapshot.advice,
    }


def _cleanup(health: Health, config: Config, stored: Overview | None, now: int) -> dict[str, Any]:
    """Return the state of cleanup, and its last and next run."""
    faults = {part: text for part, text in health.faults.items() if part in CLEANUP_PARTS}
    last_run = stored.runs[0] if stored and stored.runs else None
    job_intervals = schedule(config.retention.purge_jobs, config.cleanup_interval)
    return {
        "faults": faults,
        "erases": config.retention.enabled,
        "last": _run(last_run) if last_run else None,
        "ago": about(now - last_run.finished_at) if last_run else "",
        "worker": health.cleanup,
        "next": None if health.next_run_at is None else about(max(0, round(health.next_run_at - now))),
        "jobs": [(scope.name, seconds) for scope, seconds in job_intervals],
        "engine": config.cleanup.engine,
    }


def _run(run: Run) -> dict[str, Any]:
    erased_count = sum(run.deleted.get(rule, 0) for rule in RULES)
    return {
        "began": run.started_at,
        "ended": run.finished_at,
        "took": run.finished_at - run.started_at,
        "job": run.job,
        "is_good": run.outcome == "ok",
        "error": run.error,
        "messages": erased_count,
        "archived": run.archived,
        "returned": run.bytes_returned + run.archive_bytes_returned,
    }


def _bytes(sizes: Measurements, stored: Overview | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of sizes. Unknown sizes are omitted."""
    if stored and stored.archived_messages:
        amount = counted(stored.archived_messages, "message")
        yield "messages in the archive", f"{size_text(stored.archived_bytes)} in {amount}"
    if sizes.dead:
        yield "erased messages using space in the archive", counted(sizes.dead, "message")
    names = {"database": "database file", "wal": "write-ahead log", "archive": "archive files"}
    for name, text in names.items():
        if name in sizes.files:
            yield text, size_text(sizes.files[name])
    if sizes.free_pages is not None:
        yield "unused space in the database file", size_text(sizes.free_pages)
    for place, (free, total) in sizes.disks.items():
        yield f"free on the disk of the {place}", f"{size_text(free)} of {size_text(total)}"


def _certificate(expires_at: int | None, renewed_expires_at: int | None, now: int) -> Mapping[str, Any] | None:
    if expires_at is None:
        return None
    return {
        "ends": expires_at,
        "left": about(expires_at - now),
        "is_over": expires_at <= now,
        "is_soon": expires_at <= now + SOON_SECONDS,
        "is_renewed": renewed_expires_at is not None and renewed_expires_at != expires_at,
    }


def _escape(value: Any) -> Any:
    """Escape invisible characters in values, except in the markup of templates."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _rule(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
