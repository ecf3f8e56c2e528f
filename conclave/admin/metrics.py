"""Exports the metrics for Prometheus. No label has a user or a group.

Values are counted elsewhere in plain lists and dictionaries, and become metrics only here. This runs in a separate
thread, so values that the event loop changes are copied in one step before they are iterated.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from conclave import __version__, app_keys
from conclave.admin.access import Guard
from conclave.admin.sizes import Sizes
from conclave.health.parts import CleanupState, Health, HealthPart
from conclave.health.readiness import Readiness, readiness_of
from conclave.measures import Histogram, merge_histograms
from conclave.retention.jobs import schedule

Collect = Callable[[], Iterator[Metric]]

SAMPLE_INTERVAL_SECONDS = 0.25
"""The interval of measurements."""

WINDOW_SECONDS = 60.0


class LoopLag:
    """The lag of the event loop, during which the server answers no client.

    ``lags``: the measurements. The maximum is that of the last one to two minutes.
    """

    def __init__(self) -> None:
        self.lags = Histogram()
        self._maximums = (0.0, 0.0)
        """The maximum of this window, and of the previous one."""
        self._window_ends = time.monotonic() + WINDOW_SECONDS
        self._due = time.monotonic() + SAMPLE_INTERVAL_SECONDS

    @property
    def worst(self) -> float:
        """The longest lag, in seconds, of the last one to two minutes."""
        return max(self._maximums)

    async def measure(self) -> None:
        """Record the delay of this call, which is due SAMPLE_INTERVAL_SECONDS after the previous call."""
        now = time.monotonic()
        delay = max(0.0, now - self._due)  # the loop's timers may fire slightly early
        self.lags.record(delay)
        current, previous = self._maximums
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            current, previous = 0.0, current
        self._maximums = max(current, delay), previous
        self._due = time.monotonic() + SAMPLE_INTERVAL_SECONDS


class FunctionCollector(Collector):
    """A collector that calls a function."""

    def __init__(self, collect: Collect) -> None:
        """``collect``: called at each scrape."""
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        yield from self._collect()


def registry(client_app: web.Application, lag: LoopLag, sizes: Sizes, guard: Guard) -> CollectorRegistry:
    """Return a registry with all metrics. ``client_app``: the clients' application."""
    collectors = CollectorRegistry()
    for each in (
        lambda: _server(client_app, guard),
        lambda: _requests(client_app),
        lambda: _writes(client_app),
        lambda: _streams(client_app),
        lambda: _closed(client_app),
        lambda: _loop(lag),
        lambda: _cleanup(client_app),
        lambda: _sizes(sizes),
        _process,
    ):
        collectors.register(FunctionCollector(each))
    return collectors


def _server(client_app: web.Application, guard: Guard) -> Iterator[Metric]:
    health, budget = client_app[app_keys.HEALTH], client_app[app_keys.BUDGET]
    yield InfoMetricFamily("conclave_build", "The version of the server.", {"version": __version__})
    is_ready = readiness_of(health, client_app.get(app_keys.STORAGE)) is Readiness.READY
    yield GaugeMetricFamily("conclave_ready", "1 if the server is ready.", is_ready)
    faults = GaugeMetricFamily("conclave_health_fault", "1 if a part of the server has a fault.", labels=["part"])
    faulty = health.faults
    for part in HealthPart:
        faults.add_metric([part], part in faulty)
    yield faults
    help_text = "Memory of responses that are being sent, in bytes."
    yield GaugeMetricFamily("conclave_response_memory_used_bytes", help_text, budget.used)
    help_text = "The memory limit of responses that are being sent, in bytes."
    yield GaugeMetricFamily("conclave_response_memory_limit_bytes", help_text, budget.size)
    help_text = "Responses aborted because of their memory, by the limit exceeded: the account's, or the total."
    yield _counters("conclave_responses_cut_off", help_text, "reason", dict(budget.cut_off))
    if expires_at := client_app[app_keys.HEALTH].certificate_ends:
        help_text = "When the certificate in use expires."
        yield GaugeMetricFamily("conclave_certificate_end_timestamp_seconds", help_text, expires_at)
    help_text = "Rejected requests to the operators' listener, by reason."
    yield _counters("conclave_admin_refused", help_text, "reason", dict(guard.refused))


def _requests(client_app: web.Application) -> Iterator[Metric]:
    by_request = client_app[app_keys.REQUESTS].histograms()
    counts = CounterMetricFamily("conclave_requests", "Answered requests.", labels=["method", "route", "status"])
    by_route: dict[tuple[str, str], list[Histogram]] = defaultdict(list)
    for (method, route, status), each in by_request.items():
        counts.add_metric([method, route, str(status)], sum(each.counts))
        by_route[method, route].append(each)
    yield counts
    durations = HistogramMetricFamily(
        "conclave_request_duration_seconds", "How long requests took.", labels=["method", "route"]
    )
    for (method, route), histograms in by_route.items():
        _add(durations, [method, route], merge_histograms(histograms))
    yield durations


def _writes(client_app: web.Application) -> Iterator[Metric]:
    store = client_app.get(app_keys.STORE)
    if store is None:
        return
    statistics = store.written
    help_text = "Transactions of the server, by outcome."
    yield _counters("conclave_write_transactions", help_text, "outcome", dict(statistics.outcomes))
    yield _histogram("conclave_writes_per_transaction", "Writes in one transaction.", statistics.sizes)
    help_text = "How long transactions waited for the database's write lock."
    yield _histogram("conclave_write_lock_wait_seconds", help_text, statistics.lock_waits)
    yield _histogram("conclave_commit_duration_seconds", "How long commits took.", statistics.commits)
    help_text = "Writes waiting for the next transaction."
    yield GaugeMetricFamily("conclave_writes_waiting", help_text, store.writes_waiting)


def _streams(client_app: web.Application) -> Iterator[Metric]:
    events = client_app[app_keys.EVENTS]
    backlog = events.backlog()
    yield GaugeMetricFamily("conclave_streams", "Open event streams.", events.wheel.size)
    yield GaugeMetricFamily("conclave_stream_events_waiting", "Events queued for slow clients.", backlog.events)
    help_text = "Events queued for the slowest client."
    yield GaugeMetricFamily("conclave_stream_events_waiting_max", help_text, backlog.longest)
    help_text = "Events dropped because their client was too slow."
    yield CounterMetricFamily("conclave_stream_events_dropped", help_text, events.lost)


def _closed(client_app: web.Application) -> Iterator[Metric]:
    counts = client_app[app_keys.CLOSED_CONNECTIONS]
    help_text = "Connections of clients that the server closed or refused, by reason."
    yield _counters("conclave_connections_closed", help_text, "reason", dict(counts))


def _loop(lag: LoopLag) -> Iterator[Metric]:
    yield _histogram(
        "conclave_event_loop_lag_seconds", "The lag of the event loop, measured four times a second.", lag.lags
    )
    help_text = "The maximum lag of the event loop in the last one to two minutes."
    yield GaugeMetricFamily("conclave_event_loop_lag_max_seconds", help_text, lag.worst)


def _cleanup(client_app: web.Application) -> Iterator[Metric]:
    health, config = client_app[app_keys.HEALTH], client_app[app_keys.CONFIG]
    runs = CounterMetricFamily(
        "conclave_cleanup_runs", "Cleanup runs since the server started.", labels=["purge_job", "outcome"]
    )
    for (job, outcome), count in dict(health.runs).items():
        runs.add_metric([job, outcome], count)
    yield runs
    help_text = "Deletions by cleanup runs, by rule."
    yield _counters("conclave_cleanup_deleted", help_text, "rule", dict(health.deleted))
    help_text = "Bytes that cleanup runs returned to the disk, by tier."
    yield _counters("conclave_cleanup_returned_bytes", help_text, "tier", dict(health.returned))
    help_text = "Messages that cleanup runs moved to the archive."
    yield CounterMetricFamily("conclave_cleanup_archived_messages", help_text, health.archived)
    help_text = "The total duration of cleanup runs, in seconds."
    yield _counters("conclave_cleanup_run_seconds", help_text, "purge_job", dict(health.run_seconds))
    yield from _last_runs(health)
    intervals = schedule(config.retention.purge_jobs, config.cleanup_interval)
    interval_by_job = {scope.name: every for scope, every in intervals}
    help_text = "Seconds from the start of one run of a job to the start of the next."
    yield _gauges("conclave_cleanup_interval_seconds", help_text, "purge_job", interval_by_job)
    help_text = "When the last successful run of a job ended; 0: none since the server started."
    success_times = dict.fromkeys(interval_by_job, 0) | dict(health.succeeded)
    yield _gauges("conclave_cleanup_last_success_timestamp_seconds", help_text, "purge_job", success_times)
    yield from _worker(health)
    help_text = "Unexpected ends of the cleanup worker, after which it was restarted."
    yield CounterMetricFamily("conclave_cleanup_worker_ends", help_text, health.worker_ends)
    held_messages = (health.last_run or {}).get("held", 0)
    yield GaugeMetricFamily(
        "conclave_held_messages", "Messages that would be erased without legal holds.", held_messages
    )
    overdue = health.overdue
    help_text = "Groups with overdue messages, at the last check."
    yield GaugeMetricFamily("conclave_overdue_groups", help_text, overdue.groups)
    help_text = "How long the oldest overdue messages have been due, in seconds."
    yield GaugeMetricFamily("conclave_overdue_seconds", help_text, overdue.seconds)


def _worker(health: Health) -> Iterator[Metric]:
    help_text = "1 for the state of the cleanup worker. In the state asleep its process is stopped until the next run."
    state = health.cleanup
    yield _gauges(
        "conclave_cleanup_worker_state", help_text, "state", {each: int(each is state) for each in CleanupState}
    )
    help_text = "Java starts of the cleanup worker."
    yield CounterMetricFamily("conclave_cleanup_java_starts", help_text, health.java_starts)
    help_text = "How long the last start of Java took; 0: none since the server started."
    yield GaugeMetricFamily("conclave_cleanup_java_start_seconds", help_text, health.java_start_seconds)
    help_text = "When the next cleanup run begins; 0: unknown, for example during a run."
    yield GaugeMetricFamily("conclave_cleanup_next_run_timestamp_seconds", help_text, round(health.next_run_at or 0))


def _last_runs(health: Health) -> Iterator[Metric]:
    reports = dict(health.last_runs)
    end_times = {job: report["finished_at"] for job, report in reports.items()}
    help_text = "When the last run of a job ended."
    yield _gauges("conclave_cleanup_last_end_timestamp_seconds", help_text, "purge_job", end_times)
    durations = {job: report["finished_at"] - report["started_at"] for job, report in reports.items()}
    help_text = "How long the last run of a job took."
    yield _gauges("conclave_cleanup_last_duration_seconds", help_text, "purge_job", durations)


def _sizes(sizes: Sizes) -> Iterator[Metric]:
    """Yield the last measurements. Unknown ones are omitted: 0 would be wrong."""
    measured = sizes.last
    for name, text in (("database", "The database."), ("wal", "Its write-ahead log."), ("archive", "The archive.")):
        if name in measured.files:
            yield GaugeMetricFamily(f"conclave_{name}_bytes", f"{text} Bytes of its files.", measured.files[name])
    if measured.free_pages is not None:
        help_text = "Unused bytes in the database's file."
        yield GaugeMetricFamily("conclave_database_free_bytes", help_text, measured.free_pages)
    if measured.backup_at is not None:
        help_text = "When the last backup was made, according to the audit log; 0: none."
        yield GaugeMetricFamily("conclave_backup_timestamp_seconds", help_text, measured.backup_at)
    if measured.vault_copies is not None:
        faults = Counter("faulty" if fault else "current" for fault in measured.vault_copies.values())
        copies = dict.fromkeys(("current", "faulty"), 0) | faults
        yield _gauges("conclave_vault_copies", "Configured copies of the vault.", "state", copies)
    if measured.dead is not None:
        help_text = "Erased messages that use space in the archive's files until it is reclaimed."
        yield GaugeMetricFamily("conclave_archive_dead_messages", help_text, measured.dead)
    free_bytes = {place: available for place, (available, _) in measured.disks.items()}
    disk_sizes = {place: size for place, (_, size) in measured.disks.items()}
    yield _gauges("conclave_disk_free_bytes", "Free bytes of the place's file system.", "place", free_bytes)
    yield _gauges("conclave_disk_size_bytes", "The size of the place's file system, in bytes.", "place", disk_sizes)
    help_text = "Resident memory of the cleanup worker and its Java process."
    yield _gauges("conclave_cleanup_resident_memory_bytes", help_text, "process", measured.memory)
    if measured.taken_at:
        help_text = "The age of the measured sizes. If it grows, a disk is not responding."
        yield GaugeMetricFamily("conclave_sizes_age_seconds", help_text, sizes.age)


def _process() -> Iterator[Metric]:
    """Yield the process metrics of prometheus_client, as far as the system supports them."""
    try:
        yield from ProcessCollector(registry=None).collect()
    except ValueError:  # it cannot parse an "unlimited" number of open files
        return


def _counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    metric = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        metric.add_metric([value], count)
    return metric


def _gauges(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        metric.add_metric([value], number)
    return metric


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    metric = HistogramMetricFamily(name, text, labels=[])
    _add(metric, [], histogram)
    return metric


def _add(to: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    """Add a histogram with cumulative buckets, as Prometheus has them."""
    counts, below, buckets = list(histogram.counts), 0, []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, below))
    to.add_metric(labels, buckets, histogram.total)
