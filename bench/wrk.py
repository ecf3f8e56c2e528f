"""A load by wrk: a compiled generator that parses each answer, and tells what a server's processor time was worth."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.process import cpu_seconds

PATIENCE_SECONDS = 30.0

_SCRIPT = """
local requests, n = {}, 0
local file = io.open("%s", "rb")
for i = 1, %d do
  local size = tonumber(file:read("*l"))
  requests[i] = file:read(size)
end
file:close()
function request()
  n = n + 1
  local text = requests[(n - 1) %% #requests + 1]
  if %s then text = text:gsub("\\r\\n\\r\\n", "\\r\\nX-Trace: " .. n .. "\\r\\n\\r\\n", 1) end
  return text
end
function done(summary, latency, all)
  local failed = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write
  io.write(string.format("FOUND %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration, failed,
    latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True)
class Took:
    """What came of a load. ``rate``: answers a second. ``cpu``: the server's microseconds of processor time each.

    ``median``, ``p99``: of the time to an answer, milliseconds.
    """

    rate: float
    cpu: float
    median: float
    p99: float


def is_there() -> bool:
    return shutil.which("wrk") is not None


def run(
    folder: Path,
    port: int,
    pid: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: int,
    *,
    varies: bool = False,
    fails: bool = False,
) -> Took:
    """Ask ``requests`` in turn over ``connections``. ``varies``: with a header that differs each time.

    ``pid``: the process whose processor time counts. Raises RuntimeError if an answer is no success;
    with ``fails`` that is what is measured.
    """
    texts, script = folder / "requests", folder / "load.lua"
    texts.write_bytes(b"".join(b"%d\n%b" % (len(each), each) for each in requests))
    script.write_text(_SCRIPT % (texts, len(requests), "true" if varies else "false"))
    before = cpu_seconds(pid)
    done = subprocess.run(
        ["wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}/"],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + PATIENCE_SECONDS,
    )
    spent = cpu_seconds(pid) - before
    line = next((each for each in done.stdout.splitlines() if each.startswith("FOUND ")), "")
    if not line:
        raise RuntimeError(f"wrk: {done.stdout}{done.stderr}")
    answered, micros, failed, median, p99 = (int(each) for each in line.split()[1:])
    if (failed and not fails) or not answered:
        raise RuntimeError(f"{failed} of {answered} failed: {done.stdout}")
    return Took(answered / (micros / 1e6), spent / answered * 1e6, median / 1000, p99 / 1000)
