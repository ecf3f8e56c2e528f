"""What tests of the archive share."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conclave.store.archive.moves import ArchiveState
from spark.archive.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A new table of the archive "mine". Who asks for Spark fails."""

    def session() -> SparkSession:
        raise AssertionError("no Spark is needed")

    found = Table(session, tmp_path / "archive")
    found.prepare(lambda: ArchiveState("mine", 0, unerased=True, turn=0, former_turn=0), is_new=True)
    return found
