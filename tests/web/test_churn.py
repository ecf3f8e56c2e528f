"""Groups of browser clients, Python clients and the live peer, if there is one, that change at random."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.client.mls.actors import Actor, Here, Peer, PeerProcess
from tests.client.mls.churn import Churn
from tests.support import sample
from tests.web.node import NODE, needs_node

LIVE_PEER = os.environ.get("CONCLAVE_MLS_PEER")
EPOCHS = 100
MEMBERS = 6


@pytest.fixture
def kinds(programs: Path) -> Iterator[list[Callable[[], Actor]]]:
    with ExitStack() as stack:
        browser = PeerProcess(NODE or "node", programs / "peer.mjs")
        stack.callback(browser.close)
        found: list[Callable[[], Actor]] = [Here, lambda: Peer(browser, proposes_updates=False)]
        if LIVE_PEER:
            live = PeerProcess(LIVE_PEER)
            stack.callback(live.close)
            found.append(lambda: Peer(live))
        yield found


@needs_node
@pytest.mark.parametrize("seed", [1, 2])
def test_browsers_and_others_stay_in_one_group(kinds: list[Callable[[], Actor]], seed: int) -> None:
    chance = random.Random(seed)

    def newcomer() -> Actor:
        return chance.choice(kinds)()

    churn = Churn(chance, newcomer, MEMBERS)
    churn.begin()
    for _ in range(EPOCHS if LIVE_PEER else sample.amount(EPOCHS, 20)):
        churn.step()
