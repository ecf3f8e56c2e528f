"""Two layouts of the archive's table under the same settings: the chosen one, and one by group alone."""

import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.compute
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession, functions as F

from bench.archives import BODY_BYTES, SETTINGS, WRITER
from bench.figures import Figure, percentile
from conclave.archive.layout import DAY, FILE_BYTES
from conclave.config.settings import Config
from spark.java import Java
from spark.session import build_session
from spark.work_folder import WorkFolder

ROWS = int(os.environ.get("CONCLAVE_BENCH_MESSAGES", "1000000"))
GROUPS, DAYS, BUCKETS = 2_000, 25, 32
OLDEST = 1_700_000_000 // DAY * DAY
PAGES = 200


def compare(folder: Path) -> list[Figure]:
    spark = build_session(Config(), WorkFolder(folder / "work"), Java(), archive=True)
    figures = []
    for name, column in (("by class and day", "span"), (f"by class and {BUCKETS} buckets of groups", "bucket")):
        path = folder / column
        _build(path, column)
        _Layout(spark, path, column).warm_up()
        figures += _Layout(spark, path, column).figures(name)
    spark.stop()
    return figures


def _build(path: Path, column: str) -> None:
    """Write a table a part at a time; each has all messages of some groups, or of one day."""
    each = ROWS // GROUPS
    for part in range(DAYS if column == "span" else BUCKETS):
        if column == "span":
            groups, numbers = range(GROUPS), range(part * each // DAYS, (part + 1) * each // DAYS)
            value = OLDEST + part * DAY
        else:
            groups, numbers, value = range(part, GROUPS, BUCKETS), range(each), part
        keys = pyarrow.array([group for group in groups for _ in numbers], pyarrow.int64())
        seqs = pyarrow.array([*numbers] * len(groups), pyarrow.int64())
        count = len(keys)
        created = pyarrow.compute.add(pyarrow.compute.multiply(seqs, DAYS * DAY // each), OLDEST)
        bodies = pyarrow.array([os.urandom(BODY_BYTES) for _ in range(count)], pyarrow.binary())
        columns = {
            "lifetime": pyarrow.repeat(DAYS * DAY, count),
            column: pyarrow.repeat(value, count),
            "group_key": keys,
            "sequence_num": seqs,
            "created_at": created,
            "mls_message": bodies,
        }
        write_deltalake(
            str(path),
            pyarrow.table(columns),
            partition_by=["lifetime", column],
            mode="append",
            configuration=SETTINGS,
            target_file_size=FILE_BYTES,
            writer_properties=WRITER,
        )


class _Layout:
    def __init__(self, spark: SparkSession, path: Path, column: str) -> None:
        self._spark = spark
        self._path = path
        self._column = column

    def warm_up(self) -> None:
        self._delete("created_at < 0")
        self._merge(range(GROUPS), OLDEST)

    def figures(self, name: str) -> list[Figure]:
        pages = self._pages()
        some = random.Random(2).sample(range(GROUPS), GROUPS // 20)
        found = [
            ("MERGE with nothing due, 2,000 groups", *self._timed(lambda: self._merge(range(GROUPS), OLDEST))),
            ("one day of all groups", *self._timed(self._drop_day)),
            ("1% of all, in 100 groups", *self._timed(lambda: self._merge(some, OLDEST + 6 * DAY))),
        ]
        shown = [Figure(f"{what}, {name}", f"{took:.1f} s, {size:,.0f} MB rewritten") for what, took, size in found]
        p50, p95 = (percentile(pages, share) * 1000 for share in (0.5, 0.95))
        return [*shown, Figure(f"page of 100, {name}: p50 / p95", f"{p50:.1f} / {p95:.1f} ms")]

    def _timed(self, work: Callable[[], None]) -> tuple[float, float]:
        before = set(DeltaTable(str(self._path)).file_uris())
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        added = set(DeltaTable(str(self._path)).file_uris()) - before
        return took, sum(Path(each).stat().st_size for each in added) / 1e6

    def _drop_day(self) -> None:
        self._delete(f"span = {OLDEST}" if self._column == "span" else f"created_at < {OLDEST + DAY}")

    def _delete(self, condition: str) -> None:
        self._spark.sql(f"DELETE FROM delta.`{self._path}` WHERE lifetime = {DAYS * DAY} AND {condition}")

    def _merge(self, groups: Sequence[int], cutoff: int) -> None:
        """Delete what is older than ``cutoff``: a plan of a row a group, and as much by literals as the layout has."""
        due = self._spark.createDataFrame(pyarrow.table({"key": [*groups], "cutoff": [cutoff] * len(groups)}))
        F.broadcast(due).createOrReplaceTempView("due")
        if self._column == "span":
            values = [OLDEST + day * DAY for day in range(max(1, (cutoff - OLDEST) // DAY))]
        else:
            values = sorted({group % BUCKETS for group in groups})
        self._spark.sql(
            f"MERGE INTO delta.`{self._path}` AS stored USING due ON stored.lifetime = {DAYS * DAY}"
            f" AND stored.{self._column} IN ({', '.join(map(str, values))}) AND stored.created_at < {cutoff}"
            " AND stored.group_key = due.key AND stored.created_at < due.cutoff WHEN MATCHED THEN DELETE"
        ).collect()

    def _pages(self) -> list[float]:
        chance, each = random.Random(1), ROWS // GROUPS
        query = QueryBuilder().register("archive", DeltaTable(str(self._path)))
        took = []
        for _ in range(PAGES):
            group, after = chance.randrange(GROUPS), chance.randrange(each - 100)
            part = f"span IN ({', '.join(map(str, self._spans(after)))})"
            if self._column == "bucket":
                part = f"bucket = {group % BUCKETS}"
            began = time.perf_counter()
            rows = query.execute(
                f"SELECT sequence_num, mls_message FROM archive WHERE lifetime = {DAYS * DAY} AND {part}"
                f" AND group_key = {group} AND sequence_num BETWEEN {after} AND {after + 99} ORDER BY sequence_num"
            ).read_all()
            took.append(time.perf_counter() - began)
            if rows.num_rows != 100:
                raise RuntimeError(f"a page of {rows.num_rows}")
        return took

    def _spans(self, after: int) -> list[int]:
        daily = ROWS // GROUPS // DAYS
        return [OLDEST + day * DAY for day in range(after // daily, (after + 99) // daily + 1)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="conclave-bench-") as work:
        (Path(work) / "work").mkdir()
        for figure in compare(Path(work)):
            print(figure.what, "|", figure.measured, flush=True)
