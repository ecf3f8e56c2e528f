"""What tests of the archive share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conclave.store.archive.moves import ArchiveState
from spark.archive.table import Table
from tests.support.cleaner import Cleaner


@pytest.fixture(params=["arrow", "spark"])
def eraser(request: pytest.FixtureRequest, cleaner: Cleaner) -> Iterator[str]:
    """Which of the two rewrites files in the runs of a test, although it is little."""
    cleaner.erases_by_spark = request.param == "spark"
    yield request.param
    cleaner.erases_by_spark = False


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A new table of the archive "mine". Who asks for Spark fails."""

    def session() -> SparkSession:
        raise AssertionError("no Spark is needed")

    found = Table(session, tmp_path / "archive")
    found.prepare(lambda: ArchiveState("mine", 0, unerased=True, turn=0, former_turn=0), is_new=True)
    return found
