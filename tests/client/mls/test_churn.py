"""Groups that change at random, of this package's clients and of those with the live peer among them."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.mls.actors import Actor, Here, Peer, PeerProcess
from tests.client.mls.churn import Churn
from tests.support import sample

PEER = os.environ.get("CONCLAVE_MLS_PEER")
"""The program of the live peer."""
FIRST = sample.chance("churn").randrange(10**6)


@pytest.mark.parametrize("suite", [1, 6])
@pytest.mark.parametrize("most", [4, 12, 30])
def test_a_group_that_changes_at_random_stays_one_group(suite: int, most: int) -> None:
    chance = random.Random(f"{FIRST} {suite} {most}")
    churn = Churn(chance, lambda: Here(suite), most)
    churn.begin()
    for _ in range(sample.amount(120, 8)):
        churn.step()


@pytest.fixture
def peer() -> Iterator[PeerProcess]:
    if PEER is None:
        pytest.skip("CONCLAVE_MLS_PEER names no live peer")
    process = PeerProcess(Path(PEER))
    yield process
    process.close()


@pytest.mark.parametrize("number", range(sample.amount(40, 3)))
def test_existing_clients_and_this_one_stay_in_one_group(peer: PeerProcess, number: int) -> None:
    chance = random.Random(f"{FIRST} peer {number}")
    share = chance.choice([0.3, 0.5, 0.8])

    def newcomer() -> Actor:
        return Here() if chance.random() < share else Peer(peer)

    churn = Churn(chance, newcomer, chance.choice([4, 10, 30]))
    churn.begin()
    for _ in range(sample.amount(50, 10)):
        churn.step()
