"""What a cleanup run costs when nothing is due, and when next to nothing is."""

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
    """A third of the groups keeps, a third expires, a third deletes after fetch: none has anything due.

    Then one expired session is due in each run, so that Spark plans.
    """
    now = int(time.time())
    shape = stores.Shape(users=50, groups=GROUPS, members=MEMBERS, expiries=(-1, DAY, 0))
    store = stores.build(folder, "spark", now, shape, [now] * MESSAGES)
    first: dict[str, float] = {}
    nothing: dict[str, list[float]] = {}
    warm: dict[str, list[float]] = {}
    for engine in ("spark", "sql"):
        with Cleaning(replace(store.config, cleanup=CleanupConfig(engine=engine))) as cleaning:
            nothing[engine] = [_run(cleaning, now + n, due=0) for n in range(RUNS)]
            runs = []
            for n in range(WARM_UPS + RUNS):
                stores.expire_session(store.config.database)
                runs.append(_run(cleaning, now + RUNS + n, due=1))
            first[engine], warm[engine] = runs[0], runs[WARM_UPS:]
    what = f"{GROUPS:,} groups of {MEMBERS}"
    return [
        spread(f"Spark engine: {what}, nothing due, no Spark needed", nothing["spark"], "s"),
        spread(f"SQL engine: {what}, nothing due", nothing["sql"], "s"),
        spread(f"Spark, warm: {what}, a session due", warm["spark"], "s", most=1),
        spread(f"SQL: {what}, a session due", warm["sql"], "s"),
        ratio("Spark / SQL", warm["spark"], warm["sql"]),
        single("Spark, first run of a session", first["spark"], "s"),
    ]


def _run(cleaning: Cleaning, now: int, due: int) -> float:
    """Do a run that has to delete so much; return the seconds that it takes."""
    report = cleaning.run(now)
    if sum(report["deleted"].values()) != due:
        raise RuntimeError(f"{due} were due, and {report['deleted']} went")
    return float(report["seconds"])
