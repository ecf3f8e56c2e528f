"""The ``conclave status`` command."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
from prometheus_client.parser import text_string_to_metric_families

from conclave.admin.access import TokenError, token_of
from conclave.cli.common import CliError, command_config, config_option, one_line_errors
from conclave.cli.tables import about, counted, second, visible
from conclave.clock import SystemClock
from conclave.config.load import ConfigError
from conclave.config.settings import Config
from conclave.logs.lines import size_text
from conclave.retention.jobs import schedule
from conclave.server.start_check import find_refusals

TIMEOUT_SECONDS = 5.0
"""For each request."""

MAX_BYTES = 16 * 1024 * 1024
"""The largest response: another program may listen there."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
_PLAIN = frozenset[tuple[str, str]]()


_WORKER_STATES = {
    "asleep": "idle until the next run",
    "waking": "starting a run",
    "running": "running",
    "awake": "ready for the next run",
    "none": "no worker; unless there is a fault, it is starting",
}
"""Descriptions of the cleanup worker's states."""


class Samples(dict[str, dict[frozenset[tuple[str, str]], float]]):
    """The metrics of /metrics: values by name and labels."""

    def value(self, name: str, **labels: str) -> float | None:
        """Return a value, or None."""
        return self.get(name, {}).get(frozenset(labels.items()) or _PLAIN)

    def labels(self, name: str) -> list[str]:
        """Return the values of a metric's only label."""
        return [dict(each).popitem()[1] for each in self.get(name, {}) if each]


class ServerStatus(NamedTuple):
    """The responses of the operators' listener."""

    health: Mapping[str, Any]
    samples: Samples


@click.command()
@config_option
@click.option(
    "--url", metavar="URL", help="The operators' listener, such as http://127.0.0.1:9090; default: as configured."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in Unix seconds.")
def status(path: Path | None, url: str | None, *, as_json: bool) -> None:
    """Show the status of the running server.

    It shows health, runs, overdue messages and sizes. It queries the listener of [admin], and checks whether the next
    start would be refused. Exit status 1 if no server answers.
    """
    with one_line_errors(ConfigError, CliError, TokenError):
        config = command_config(path)
        asked = url or _url(config)
        answer = _ask(asked, token_of(config.admin))
    # With --url, this machine may have other files.
    refused = [] if url else [each.says for each in find_refusals(config, SystemClock()) if not each.is_of_user]
    if as_json:
        metrics = [
            {"name": name, "labels": dict(labels), "value": value}
            for name, found in answer.samples.items()
            for labels, value in found.items()
        ]
        click.echo(json.dumps({"url": asked, "health": answer.health, "metrics": metrics, "start_refused": refused}))
        return
    for name, value in lines(answer, config, int(time.time())):
        click.echo(f"{name + ':':11} {visible(value)}")
    for each in refused:
        click.echo(f"next start: will fail: {visible(each)}")


def _url(config: Config) -> str:
    address, port = config.admin.listen_address, config.admin.listen_port
    if port == 0:
        raise CliError("admin.listen_port is 0: find admin_url in the server's log, and use --url")
    address = _LOOPBACK.get(address, address)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _ask(url: str, token: str | None) -> ServerStatus:
    """Query the listener, with the token of [admin] if set. Raises CliError if no server answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise CliError(f"{url}: not a URL such as http://127.0.0.1:9090")
        where = parts.hostname, parts.port or 80
        health = json.loads(_get(*where, "/healthz", headers, (200, 503)))
        samples = _samples(_get(*where, "/metrics", headers, (200,)).decode())
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CliError(f"no server answers at {url}: {reason}") from error
    except ValueError as error:
        raise CliError(f"{url}: this is not Conclave's operators' listener") from error
    if not isinstance(health, dict) or "status" not in health:
        raise CliError(f"{url}: this is not Conclave's operators' listener")
    return ServerStatus(health, samples)


def _get(host: str, port: int, path: str, headers: Mapping[str, str], expected: tuple[int, ...]) -> bytes:
    with closing(http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read(MAX_BYTES)
    if response.status not in expected:
        raise CliError(f"http://{host}:{port}{path}: {response.status} {response.reason}")
    return body


def _samples(text: str) -> Samples:
    """Parse Prometheus text. Raises ValueError."""
    found = Samples()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def lines(answer: ServerStatus, config: Config, now: int) -> Iterator[tuple[str, str]]:
    """Yield names and values to show. Missing metrics are omitted. ``now``: Unix seconds."""
    health, samples = answer
    build = [dict(each).get("version", "") for each in samples.get("conclave_build_info", {})]
    yield "version", ", ".join(build) or "unknown"
    begun = samples.value("process_start_time_seconds")
    if begun is not None:
        yield "up for", about(now - int(begun))
    yield "health", str(health["status"])
    for part, fault in (health.get("faults") or {}).items():
        yield f"  {part}", str(fault)
    streams = samples.value("conclave_streams")
    if streams is not None:
        yield "streams", f"{streams:,.0f}"
    if "cleanup" in health:
        yield "cleanup", _WORKER_STATES.get(str(health["cleanup"]), str(health["cleanup"]))
    yield from _runs(answer, config, now)
    groups, seconds = samples.value("conclave_overdue_groups"), samples.value("conclave_overdue_seconds")
    if groups is not None:
        waits = f"{counted(int(groups), 'group')}, the oldest by {about(int(seconds or 0))}"
        yield "overdue", waits if groups else "nothing"
    held = samples.value("conclave_held_messages")
    if held:
        yield "held", f"{counted(int(held), 'message')} under legal holds, at the last run"
    for name in ("database", "wal", "archive"):
        size = samples.value(f"conclave_{name}_bytes")
        if size is not None:
            yield name, size_text(int(size))
    yield from _vault(samples)
    for place in sorted(samples.labels("conclave_disk_free_bytes")):
        free = samples.value("conclave_disk_free_bytes", place=place)
        yield "free", f"{size_text(int(free or 0))} on the disk of the {place}"


def _vault(samples: Samples) -> Iterator[tuple[str, str]]:
    current, faulty = (samples.value("conclave_vault_copies", state=each) for each in ("current", "faulty"))
    if current is not None:
        wrong = f"; late or missing: {faulty:,.0f}" if faulty else ""
        text = f"up-to-date copies: {current:,.0f}{wrong}"
        yield "vault", text if current or faulty else "no copy: if the vault is lost, so are all messages"
    if dead := samples.value("conclave_archive_dead_messages"):
        yield "  erased", f"{counted(int(dead), 'message')} in the archive, space not reclaimed yet"


def _runs(answer: ServerStatus, config: Config, now: int) -> Iterator[tuple[str, str]]:
    last = answer.health.get("last_run")
    if not last:
        yield "last run", "none since the start"
        return
    deleted = sum(last["deleted"].values())
    ended = f"{second(last['finished_at'])} UTC ({about(now - last['finished_at'])} ago), {last['job']}"
    yield "last run", f"{last['outcome']}, ended {ended}, deleted {deleted:,} rows"
    if last["error"]:
        yield "  error", str(last["error"])
    intervals = {
        scope.name: seconds for scope, seconds in schedule(config.retention.purge_jobs, config.cleanup_interval)
    }
    if last["job"] in intervals:
        due = last["started_at"] + intervals[last["job"]]
        yield "next run", f"{last['job']}: {f'in {about(due - now)}' if due > now else 'now'}"
