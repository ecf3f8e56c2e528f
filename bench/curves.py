"""How sends fare under more and more load, as plots in the docs."""

import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import requests, stores
from bench.figures import Figure, latencies, percentile, spread
from bench.hot import BODY_BYTES, GROUPS, MEMBERS, ROUND_SECONDS, USERS, Side, every, in_turn
from bench.load import Load, Outcome, generator, run
from bench.plots import Axis, lines
from bench.process import Server
from conclave.wire.formats import Format

CONNECTIONS = (1, 2, 4, 8, 16, 32, 64, 128)

PLOTS = Path(__file__).parent.parent / "docs" / "plots"


def sends(folder: Path) -> list[Figure]:
    """Measure sends of 1 KiB in protobuf, and renew their plots."""
    store = stores.build(folder, "sql", int(time.time()), stores.Shape(USERS, GROUPS, MEMBERS), [])
    with Server(store.config) as server, generator() as process:
        server.wait_for("cleanup_run")
        port = int(server.url.rpartition(":")[2])
        rounds = in_turn({f"{each} at once": _senders(process, store, port, each) for each in CONNECTIONS})
    outcomes = dict(zip(CONNECTIONS, rounds.values(), strict=True))
    across = Axis("connections, each with one send after another", is_log=True, ticks=CONNECTIONS)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    took = {n: every(each) for n, each in outcomes.items()}
    waits = {
        name: [(n, percentile(seconds, share) * 1000) for n, seconds in took.items()] for name, share in shares.items()
    }
    rates = [(n, statistics.median(each.rate for each in outcome)) for n, outcome in outcomes.items()]
    renew("sends-latency", lines("Durable sends of 1 KiB: how long each takes", across, Axis("ms", is_log=True), waits))
    renew("sends-rate", lines("Durable sends of 1 KiB", across, Axis("sends a second"), {"sends": rates}))
    return [
        figure
        for n, outcome in outcomes.items()
        for figure in (
            spread(f"sends of 1 KiB, {n} at once", [each.rate for each in outcome], "/s"),
            latencies(f"send of 1 KiB, {n} at once", took[n]),
        )
    ]


def renew(name: str, plot: str) -> None:
    """Write a plot to where the docs have it."""
    PLOTS.mkdir(exist_ok=True)
    (PLOTS / f"{name}.svg").write_text(plot)


def _senders(process: ProcessPoolExecutor, store: stores.Store, port: int, connections: int) -> Side:
    asked = requests.sends(store, connections, Format.PROTOBUF, BODY_BYTES)

    def side() -> Outcome:
        return process.submit(run, Load(port, asked, ROUND_SECONDS)).result()

    return side
