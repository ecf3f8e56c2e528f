"""Reads what Prometheus is told."""

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Samples:
    """The metrics of one scrape."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def names(self) -> set[str]:
        """The metrics by the names that the docs use: a counter with its suffix, a histogram without."""
        return {_name(each) for each in self.families}

    def kinds(self) -> dict[str, str]:
        """What each is, by these names."""
        return {_name(each): "gauge" if each.type == "info" else each.type for each in self.families}

    def labels(self) -> dict[str, set[str]]:
        """The labels that its samples have, by these names; the bounds of buckets are no label of ours."""
        return {
            _name(each): {label for sample in each.samples for label in sample.labels} - {"le"}
            for each in self.families
        }

    def labels_by_sample(self) -> dict[str, set[str]]:
        """The labels of each sample, by the names that Prometheus knows."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self._samples():
            found[each.name] |= each.labels.keys()
        return found

    def values_by_label(self) -> dict[str, set[str]]:
        """What each label says anywhere."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self._samples():
            for label, value in each.labels.items():
                found[label].add(value)
        return found

    def values(self) -> set[str]:
        """All values of all labels."""
        return {value for each in self._samples() for value in each.labels.values()}

    def __getitem__(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the samples called ``name``, by the values of their labels in the order of the labels' names."""
        return {tuple(each.labels.values()): each.value for each in self._samples() if each.name == name}

    def _samples(self) -> Iterator[Sample]:
        return (sample for each in self.families for sample in each.samples)

    def one(self, name: str) -> float:
        """Return the only sample called ``name``."""
        [value] = self[name].values()
        return value


def _name(family: Metric) -> str:
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def read(text: str) -> Samples:
    return Samples(list(text_string_to_metric_families(text)))
