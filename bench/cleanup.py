"""What a cleanup run costs when nothing is due."""

import time
from dataclasses import replace
from pathlib import Path

from bench import stores
from bench.figures import Figure, ratio, single, spread
from bench.process import Cleaning
from conclave.config.cleanup import CleanupConfig

GROUPS, MEMBERS, MESSAGES = 1_000, 5, 20
DAY = 86_400
WARM_UPS, RUNS = 2, 9


def nothing_due(folder: Path) -> list[Figure]:
    """A third of the groups keeps, a third expires, a third deletes after fetch: none has anything due."""
    now = int(time.time())
    shape = stores.Shape(users=50, groups=GROUPS, members=MEMBERS, expiries=(-1, DAY, 0))
    store = stores.build(folder, "spark", now, shape, [now] * MESSAGES)
    first: dict[str, float] = {}
    warm: dict[str, list[float]] = {}
    for engine in ("spark", "sql"):
        with Cleaning(replace(store.config, cleanup=CleanupConfig(engine=engine))) as cleaning:
            reports = [cleaning.run(now + n) for n in range(WARM_UPS + RUNS)]
        if any(any(report["deleted"].values()) for report in reports):
            raise RuntimeError("something was due")
        first[engine] = reports[0]["seconds"]
        warm[engine] = [report["seconds"] for report in reports[WARM_UPS:]]
    what = f"{GROUPS:,} groups of {MEMBERS}, nothing due"
    return [
        spread(f"Spark, warm: {what}", warm["spark"], "s", most=1),
        spread(f"SQL: {what}", warm["sql"], "s"),
        ratio("Spark / SQL", warm["spark"], warm["sql"]),
        single("Spark, first run of a session", first["spark"], "s"),
    ]
