"""Exports the metrics for Prometheus. No label has a user or a group.

Values are counted elsewhere in plain lists and dictionaries, and become metrics only here. This runs in a separate
thread, so values that the event loop changes are copied in one step before they are iterated.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from conclave import __version__, app_keys
from conclave.admin.access import Guard
from conclave.admin.event_loop_lag import LoopLag
from conclave.admin.sizes import Sizes
from conclave.health.parts import CleanupState, Health, HealthPart
from conclave.health.readiness import Readiness, readiness_of
from conclave.measures import Histogram, merge_histograms
from conclave.retention.jobs import schedule

Collect = Callable[[], Iterator[Metric]]


class FunctionCollector(Collector):
    """A collector that calls a function."""

    def __init__(self, collect: Collect) -> None:
        """``collect``: called at each scrape."""
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        yield from self._collect()


def registry(client_app: web.Application, lag: LoopLag, sizes: Sizes, guard: Guard) -> CollectorRegistry:
    """Return a registry with all metrics. ``client_app``: the clients' application."""
    made = CollectorRegistry()
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
        made.register(FunctionCollector(each))
    return made


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
    used = "Memory of responses that are being sent, in bytes."
    yield GaugeMetricFamily("conclave_response_memory_used_bytes", used, budget.used)
    limit = "The limit of the memory of such responses, in bytes."
    yield GaugeMetricFamily("conclave_response_memory_limit_bytes", limit, budget.size)
    cut_off = "Responses aborted because of their memory, by limit: of the account, or the total."
    yield _counters("conclave_responses_cut_off", cut_off, "reason", dict(budget.cut_off))
    if ends := client_app[app_keys.HEALTH].certificate_ends:
        text = "When the certificate in use expires."
        yield GaugeMetricFamily("conclave_certificate_end_timestamp_seconds", text, ends)
    refused = "Rejected requests to the operators' listener, by reason."
    yield _counters("conclave_admin_refused", refused, "reason", dict(guard.refused))


def _requests(client_app: web.Application) -> Iterator[Metric]:
    taken = client_app[app_keys.REQUESTS].histograms()
    counts = CounterMetricFamily(
        "conclave_requests", "Requests that were answered.", labels=["method", "route", "status"]
    )
    by_route: dict[tuple[str, str], list[Histogram]] = defaultdict(list)
    for (method, route, status), each in taken.items():
        counts.add_metric([method, route, str(status)], sum(each.counts))
        by_route[method, route].append(each)
    yield counts
    took = HistogramMetricFamily(
        "conclave_request_duration_seconds", "How long requests took.", labels=["method", "route"]
    )
    for (method, route), histograms in by_route.items():
        _add(took, [method, route], merge_histograms(histograms))
    yield took


def _writes(client_app: web.Application) -> Iterator[Metric]:
    store = client_app.get(app_keys.STORE)
    if store is None:
        return
    written = store.written
    outcomes = "Transactions of the server, by outcome."
    yield _counters("conclave_write_transactions", outcomes, "outcome", dict(written.outcomes))
    yield _histogram("conclave_writes_per_transaction", "Writes in one transaction.", written.sizes)
    waits = "How long transactions waited for the database's write lock."
    yield _histogram("conclave_write_lock_wait_seconds", waits, written.lock_waits)
    yield _histogram("conclave_commit_duration_seconds", "How long commits took.", written.commits)
    waiting = "Writes waiting for the next transaction."
    yield GaugeMetricFamily("conclave_writes_waiting", waiting, store.writes_waiting)


def _streams(client_app: web.Application) -> Iterator[Metric]:
    events = client_app[app_keys.EVENTS]
    backlog = events.backlog()
    yield GaugeMetricFamily("conclave_streams", "Open event streams.", events.wheel.size)
    yield GaugeMetricFamily("conclave_stream_events_waiting", "Events queued for slow clients.", backlog.events)
    longest = "Events queued for the slowest client."
    yield GaugeMetricFamily("conclave_stream_events_waiting_max", longest, backlog.longest)
    lost = "Events dropped because their client was too slow."
    yield CounterMetricFamily("conclave_stream_events_dropped", lost, events.lost)


def _closed(client_app: web.Application) -> Iterator[Metric]:
    counts = client_app[app_keys.CLOSED_CONNECTIONS]
    closed = "Connections of clients that the server closed or refused, by reason."
    yield _counters("conclave_connections_closed", closed, "reason", dict(counts))


def _loop(lag: LoopLag) -> Iterator[Metric]:
    yield _histogram(
        "conclave_event_loop_lag_seconds", "The lag of the event loop, measured four times a second.", lag.lags
    )
    worst = "The maximum lag of the event loop in the last one to two minutes."
    yield GaugeMetricFamily("conclave_event_loop_lag_max_seconds", worst, lag.worst)


def _cleanup(client_app: web.Application) -> Iterator[Metric]:
    health, config = client_app[app_keys.HEALTH], client_app[app_keys.CONFIG]
    runs = CounterMetricFamily(
        "conclave_cleanup_runs", "Cleanup runs since the server started.", labels=["purge_job", "outcome"]
    )
    for (job, outcome), count in dict(health.runs).items():
        runs.add_metric([job, outcome], count)
    yield runs
    deleted = "Deletions of these runs, by rule."
    yield _counters("conclave_cleanup_deleted", deleted, "rule", dict(health.deleted))
    returned = "Bytes that these runs returned to the disk, by tier."
    yield _counters("conclave_cleanup_returned_bytes", returned, "tier", dict(health.returned))
    archived = "Messages that these runs moved to the archive."
    yield CounterMetricFamily("conclave_cleanup_archived_messages", archived, health.archived)
    seconds = "Seconds that these runs took."
    yield _counters("conclave_cleanup_run_seconds", seconds, "purge_job", dict(health.run_seconds))
    yield from _last_runs(health)
    intervals = schedule(config.retention.purge_jobs, config.cleanup_interval)
    names = {scope.name: interval for scope, interval in intervals}
    interval = "Seconds from the start of one run of a job to the start of the next."
    yield _gauges("conclave_cleanup_interval_seconds", interval, "purge_job", names)
    succeeded = "When the last successful run of a job ended; 0: none since the server started."
    ended = dict.fromkeys(names, 0) | dict(health.succeeded)
    yield _gauges("conclave_cleanup_last_success_timestamp_seconds", succeeded, "purge_job", ended)
    yield from _worker(health)
    ends = "How often the cleanup worker ended unexpectedly and was restarted."
    yield CounterMetricFamily("conclave_cleanup_worker_ends", ends, health.worker_ends)
    held = (health.last_run or {}).get("held", 0)
    yield GaugeMetricFamily("conclave_held_messages", "Messages that would be erased without legal holds.", held)
    overdue = health.overdue
    groups = "Groups with overdue messages, at the last check."
    yield GaugeMetricFamily("conclave_overdue_groups", groups, overdue.groups)
    first = "For how long the first of these messages has been due."
    yield GaugeMetricFamily("conclave_overdue_seconds", first, overdue.seconds)


def _worker(health: Health) -> Iterator[Metric]:
    text = "1 for the state of the cleanup worker. It is asleep between runs that are far apart."
    doing = health.cleanup
    yield _gauges("conclave_cleanup_worker_state", text, "state", {each: int(each is doing) for each in CleanupState})
    starts = "Java starts of the cleanup worker."
    yield CounterMetricFamily("conclave_cleanup_java_starts", starts, health.java_starts)
    seconds = "How long the last start of Java took; 0: none since the server started."
    yield GaugeMetricFamily("conclave_cleanup_java_start_seconds", seconds, health.java_start_seconds)
    text = "When the next cleanup run begins; 0: unknown, for example during a run."
    yield GaugeMetricFamily("conclave_cleanup_next_run_timestamp_seconds", text, round(health.next_run_at or 0))


def _last_runs(health: Health) -> Iterator[Metric]:
    last = dict(health.last_runs)
    ended = {job: report["finished_at"] for job, report in last.items()}
    text = "When the last run of a job ended."
    yield _gauges("conclave_cleanup_last_end_timestamp_seconds", text, "purge_job", ended)
    took = {job: report["finished_at"] - report["started_at"] for job, report in last.items()}
    text = "How long the last run of a job took."
    yield _gauges("conclave_cleanup_last_duration_seconds", text, "purge_job", took)


def _sizes(sizes: Sizes) -> Iterator[Metric]:
    """Yield the last measurements. Unknown ones are omitted: 0 would be wrong."""
    last = sizes.last
    for name, text in (("database", "The database."), ("wal", "Its write-ahead log."), ("archive", "The archive.")):
        if name in last.files:
            yield GaugeMetricFamily(f"conclave_{name}_bytes", f"{text} Bytes of its files.", last.files[name])
    if last.free_pages is not None:
        free = "Unused bytes in the database's file."
        yield GaugeMetricFamily("conclave_database_free_bytes", free, last.free_pages)
    if last.backup_at is not None:
        made = "When the last backup was made, by the audit log; 0: none."
        yield GaugeMetricFamily("conclave_backup_timestamp_seconds", made, last.backup_at)
    if last.vault_copies is not None:
        faults = Counter("faulty" if fault else "current" for fault in last.vault_copies.values())
        copies = dict.fromkeys(("current", "faulty"), 0) | faults
        yield _gauges("conclave_vault_copies", "Configured copies of the vault.", "state", copies)
    if last.dead is not None:
        dead = "Erased messages that use space in the archive's files until it is reclaimed."
        yield GaugeMetricFamily("conclave_archive_dead_messages", dead, last.dead)
    free_disk = {place: free for place, (free, _) in last.disks.items()}
    whole_disk = {place: whole for place, (_, whole) in last.disks.items()}
    yield _gauges("conclave_disk_free_bytes", "Free bytes of the file system of this place.", "place", free_disk)
    yield _gauges("conclave_disk_size_bytes", "Bytes of the file system of this place.", "place", whole_disk)
    memory = "Resident memory of the cleanup worker and its Java process."
    yield _gauges("conclave_cleanup_resident_memory_bytes", memory, "process", last.memory)
    if last.taken_at:
        age = "The age of the measured sizes. If it grows, a disk does not answer."
        yield GaugeMetricFamily("conclave_sizes_age_seconds", age, sizes.age)


def _process() -> Iterator[Metric]:
    """Yield the process metrics of prometheus_client, as far as the system supports them."""
    try:
        yield from ProcessCollector(registry=None).collect()
    except ValueError:  # it cannot parse an "unlimited" number of open files
        return


def _counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    made = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        made.add_metric([value], count)
    return made


def _gauges(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    made = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        made.add_metric([value], number)
    return made


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    made = HistogramMetricFamily(name, text, labels=[])
    _add(made, [], histogram)
    return made


def _add(to: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    """Add a histogram with cumulative buckets, as Prometheus has them."""
    counts, below, buckets = list(histogram.counts), 0, []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, below))
    to.add_metric(labels, buckets, histogram.total)
