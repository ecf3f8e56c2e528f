"""What Prometheus gets: how cleanup goes, what is overdue, what does not work. No label names anybody, or a group."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from conclave import __version__
from conclave.health.parts import Health, HealthPart


class HealthCollector(Collector):
    """Reads everything from the server's health when it is asked."""

    def __init__(self, health: Health) -> None:
        """``health``: that of the server."""
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        yield InfoMetricFamily("conclave_build", "The version of the server.", {"version": __version__})
        faults = GaugeMetricFamily("conclave_health_fault", "1 if a part of the server does not work.", labels=["part"])
        for part in HealthPart:
            faults.add_metric([part], part in self._health.faults)
        yield faults
        yield from self._runs()
        overdue = self._health.overdue
        groups = "Groups with messages that could have been erased and still are there, at the last look."
        yield GaugeMetricFamily("conclave_overdue_groups", groups, overdue.groups)
        seconds = "For how long the first of these messages could have been erased."
        yield GaugeMetricFamily("conclave_overdue_seconds", seconds, overdue.seconds)

    def _runs(self) -> Iterator[Metric]:
        runs = CounterMetricFamily(
            "conclave_cleanup_runs", "Cleanup runs since the server has started.", labels=["job", "outcome"]
        )
        for (job, outcome), count in self._health.runs.items():
            runs.add_metric([job, outcome], count)
        yield runs
        deleted = CounterMetricFamily(
            "conclave_cleanup_deleted", "What these runs have deleted, by rule.", labels=["rule"]
        )
        for rule, count in self._health.deleted.items():
            deleted.add_metric([rule], count)
        yield deleted
        ended = GaugeMetricFamily(
            "conclave_cleanup_last_end_timestamp_seconds", "When the last run of a job has ended.", labels=["job"]
        )
        took = GaugeMetricFamily(
            "conclave_cleanup_last_duration_seconds", "How long the last run of a job took.", labels=["job"]
        )
        for job, report in self._health.last_runs.items():
            ended.add_metric([job], report["finished_at"])
            took.add_metric([job], report["finished_at"] - report["started_at"])
        yield ended
        yield took
        held = (self._health.last_run or {}).get("held", 0)
        yield GaugeMetricFamily("conclave_held_messages", "Messages that would be gone without legal holds.", held)


def registry(health: Health) -> CollectorRegistry:
    """Return what ``prometheus_client`` writes the metrics from."""
    made = CollectorRegistry()
    made.register(HealthCollector(health))
    return made
