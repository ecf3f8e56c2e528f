"""The chat for browsers in headless Chromium: how large it is, when it is drawn first, and how smoothly it scrolls."""

import asyncio
import gzip
from pathlib import Path

from bench.figures import Figure, latencies, single, spread
from conclave.web import files
from tests.support.browser import Tab, browsing
from tests.support.server import ServerProcess
from tests.web import fake
from tests.web.fake import BOOKS
from tests.web.screens import everything

OPENED, MESSAGES, FRAMES = 5, 10_000, 600

_PAINT = """
new Promise((done) => new PerformanceObserver((list, observer) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) { observer.disconnect(); done(paint.startTime); }
}).observe({ type: "paint", buffered: true }))
"""

_SCROLL = f"""
new Promise((done) => {{
  const box = document.querySelector(".timeline"), frames = [];
  let before = performance.now();
  const step = (now) => {{
    frames.push(now - before);
    before = now;
    box.scrollTop -= 400;
    if (frames.length < {FRAMES}) requestAnimationFrame(step);
    else done(frames);
  }};
  requestAnimationFrame(step);
}})
"""


def page(folder: Path) -> list[Figure]:
    """The page of a real server with an empty profile and again; the list with an engine that has the messages."""
    packed = sum(
        len(gzip.compress(path.read_bytes(), 9, mtime=0)) for path in files.STATIC.iterdir() if path.suffix != ".png"
    )
    return [single("scripts, styles and pages, gzipped", packed / 1000, "kB", most=180), *asyncio.run(_drawn(folder))]


async def _drawn(folder: Path) -> list[Figure]:
    first, again = [], []
    (folder / "server").mkdir()
    with ServerProcess(folder / "server") as server:
        for number in range(OPENED):
            (folder / str(number)).mkdir()
            async with browsing(folder / str(number)) as tab:
                first.append(await _painted(tab, server.url))
                again.append(await _painted(tab, server.url))
    shown = everything()
    shown["messages"][BOOKS] = [fake.message(each, f"message {each}\n" * (1 + each % 3)) for each in range(1, MESSAGES)]
    (folder / "list").mkdir()
    async with fake.serving(shown) as url, browsing(folder / "list") as tab:
        await fake.opened(tab, url, BOOKS)
        await fake.seen(tab, ".text", f"message {MESSAGES - 1}")
        frames = [each / 1000 for each in await tab.run(_SCROLL)]
    return [
        spread("first contentful paint, empty profile", first, "ms", most=1000),
        spread("first contentful paint, again", again, "ms", most=1000),
        latencies(f"a frame while {MESSAGES:,} messages scroll", frames),
    ]


async def _painted(tab: Tab, url: str) -> float:
    await tab.open(f"{url}/")
    await fake.true(tab, "!!document.querySelector('.entry form')")
    found: float = await tab.run(_PAINT)
    return found
