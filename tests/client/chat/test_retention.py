"""What the chat says that a group's setting comes to, is what the server makes of it."""

from dataclasses import replace

import pytest

from conclave.client import Client
from conclave.client.chat.retention import change_notice, effective_expiry
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from conclave.wire.results import RetentionInfo
from tests.conftest import StartServer
from tests.support.client import PASSWORD

HOUR, DAY = 3600, 86_400
SETTINGS = (KEEP, AFTER_FETCH, HOUR, DAY, 40 * DAY)
BOUNDED = LifetimeLimits(max_lifetime=LifetimeRange(min=2 * HOUR, max=30 * DAY))


@pytest.mark.parametrize("server", [KEEP, AFTER_FETCH, 60 * DAY], ids="server-{}".format)
@pytest.mark.parametrize("limits", [LifetimeLimits(), BOUNDED], ids=["free", "bounded"])
@pytest.mark.parametrize("default", [KEEP, AFTER_FETCH, 10 * DAY], ids="default-{}".format)
@pytest.mark.parametrize("is_overridden", [False, True], ids=["own", "override"])
async def test_it_agrees_with_the_server(
    config: Config, start_server: StartServer, server: int, limits: LifetimeLimits, default: int, is_overridden: bool
) -> None:
    retention = RetentionConfig(default_policy=Lifetimes(KEEP, default), limits=limits)
    at = replace(config, message_retention=server, retention=retention)
    async with start_server(at) as running, Client(running.url) as client:
        await client.register("alice", PASSWORD)
        await client.login("alice", PASSWORD)
        group = await client.create_group("friends")
    if is_overridden:
        at = replace(at, retention=replace(retention, groups={str(group): Lifetimes(KEEP, 3 * DAY)}))
    async with start_server(at) as running, Client(running.url) as client:
        await client.login("alice", PASSWORD)
        configured = await client.retention_configuration()
        for setting in SETTINGS:
            if server == AFTER_FETCH and setting > 0:
                continue  # over the cap: refused
            foretold = effective_expiry(group, setting, server, configured)
            await client.update_group(group, expiry=setting)
            assert (await client.retention(group)).effective_expiry_seconds == foretold, setting


@pytest.mark.parametrize(
    ("own", "went", "said"),
    [
        (HOUR, 0, "bob changed the expiry: messages are deleted after 1 hour"),
        (HOUR, 1, "bob changed the expiry: messages are deleted after 1 hour; 1 message expired"),
        (KEEP, 2, "the operator changed the expiry: messages are deleted after 1 hour; 2 messages expired"),
    ],
)
def test_a_change_is_told_with_who_made_it_and_what_it_hides(own: int, went: int, said: str) -> None:
    former, now = RetentionInfo(KEEP, KEEP, KEEP), RetentionInfo(KEEP, own, HOUR)
    assert change_notice(former, now, "bob", went).startswith(said)
