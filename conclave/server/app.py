"""Builds the application: its resources, middlewares and routes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

from aiohttp import web

from conclave import app_keys
from conclave.actions.context import Context
from conclave.actions.messages import MessageFetcher, MessageSender, ReadReceiptWriter
from conclave.actions.quotas import create_quotas
from conclave.actions.retention import Rehearsals
from conclave.actions.taking_back import Withdrawals
from conclave.actions.timers import RedactionNotifier
from conclave.archive.reader import Archive
from conclave.auth.passwords import Passwords
from conclave.auth.throttle import Throttle
from conclave.auth.tokens import SessionActivity
from conclave.cache.freshness import Freshness, SessionCache
from conclave.cache.groups import GroupCache
from conclave.clock import Clock, SystemClock
from conclave.clock.steady import SteadyClock
from conclave.config.retention import NEXT_FETCH
from conclave.config.settings import Config
from conclave.events import KEEP_ALIVE_SECONDS, Events, News
from conclave.health.parts import Health, Phase
from conclave.health.storage import Storage
from conclave.measures import Requests
from conclave.response_memory import Budget
from conclave.server import duties, middleware, vault_duty
from conclave.server.client_port import CLOSE_REASONS
from conclave.server.routes import add_routes
from conclave.store import keyring
from conclave.store.engine.database import Database
from conclave.system import certificate
from conclave.system.reserve import reserves
from conclave.wire.exchange import MAX_BODY_BYTES
from conclave.wire.response_head import CrossOrigin


def create_app(
    config: Config, clock: Clock | None = None, *, accepts_change: bool = False, accepts_older: bool = False
) -> web.Application:
    """Build the server; its resources are opened when it starts.

    ``accepts_change``: the operator accepts a large change of the policy. ``accepts_older``: the operator accepts a
    vault that is older than the database, and the data loss that follows.
    """
    app = web.Application(middlewares=[middleware.pipeline], client_max_size=MAX_BODY_BYTES)
    app[app_keys.CONFIG] = config
    app[app_keys.ACCEPTS_CHANGE] = accepts_change
    app[app_keys.ACCEPTS_OLDER] = accepts_older
    app[app_keys.CLOCK] = steady = SteadyClock(clock or SystemClock())
    app[app_keys.HEALTH] = Health(certificate.expiry(config.tls_cert_path))
    app[app_keys.PASSWORDS] = Passwords()
    app[app_keys.THROTTLE] = Throttle(config.limits, app[app_keys.PASSWORDS], steady)
    app[app_keys.REQUESTS] = Requests()
    app[app_keys.CROSS_ORIGIN] = CrossOrigin(config.web.allowed_origins)
    app[app_keys.CLOSED_CONNECTIONS] = Counter(dict.fromkeys(CLOSE_REASONS, 0))
    app[app_keys.BUDGET] = Budget(config.limits.response_bytes)
    app[app_keys.KEY_PACKAGE_TURN] = asyncio.Semaphore(1)
    app[app_keys.ACTIVITY] = SessionActivity(config.token_ttl_seconds)
    app[app_keys.CONTEXT] = Context(config.policy, steady, quotas=create_quotas(config.limits, steady))
    app[app_keys.EVENTS] = _events(app)
    app[app_keys.REDACTION_NOTIFIER] = RedactionNotifier(app[app_keys.EVENTS])
    app.on_response_prepare.append(middleware.add_headers)
    app.on_shutdown.append(_stop)
    add_routes(app)
    app.cleanup_ctx.extend([_store, duties.watch_storage, vault_duty.keep_vault, vault_duty.keep_ledger])
    app.cleanup_ctx.extend([_archive, duties.watch_archive])
    app.cleanup_ctx.extend(
        [duties.record_alive, duties.notify_redactions, duties.end_overdue_joins, duties.store_session_activity]
    )
    app.cleanup_ctx.extend([duties.forward_outbox, duties.record_runs, duties.watch_overdue])
    app.cleanup_ctx.extend([_streams, _serving])
    return app


def _events(app: web.Application) -> Events:
    activity, clock, ttl = app[app_keys.ACTIVITY], app[app_keys.CLOCK], app[app_keys.CONFIG].token_ttl_seconds

    def extend_session(session_id: int) -> None:
        activity.extend(session_id, clock.now())

    return Events(extend_session, keep_alive_seconds=min(KEEP_ALIVE_SECONDS, ttl / 2))


async def _stop(app: web.Application) -> None:
    app[app_keys.HEALTH].phase = Phase.STOPPING
    app[app_keys.EVENTS].end_all()


async def _serving(app: web.Application) -> AsyncIterator[None]:
    app[app_keys.HEALTH].phase = Phase.SERVING
    yield
    app[app_keys.HEALTH].phase = Phase.STOPPING


async def _streams(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[app_keys.EVENTS].wait_ended()  # _stop has asked them to end


async def _store(app: web.Application) -> AsyncIterator[None]:
    config = app[app_keys.CONFIG]
    app[app_keys.STORAGE] = storage = Storage(config.database, reserves(config), MAX_BODY_BYTES, app[app_keys.HEALTH])

    def publish(news: list[News]) -> None:
        app[app_keys.GROUPS].add_news(news)
        app[app_keys.EVENTS].publish(news)

    accepts_older = app[app_keys.ACCEPTS_OLDER]
    keys = partial(
        keyring.open_to_serve, config.database, config.keys_path, config.vault_copies, accepts_older=accepts_older
    )
    app[app_keys.STORE] = store = await Database.open(config.database, publish, storage, keys)
    app[app_keys.FRESHNESS] = freshness = Freshness(config.database, app[app_keys.CLOCK], storage)
    app[app_keys.SESSIONS] = SessionCache(store, freshness)
    app[app_keys.GROUPS] = GroupCache(freshness, store.former_policies)
    app[app_keys.SENDING] = MessageSender(store, app[app_keys.CONTEXT])
    app[app_keys.READING] = ReadReceiptWriter(store, app[app_keys.CONTEXT])
    app[middleware.PIPELINE] = middleware.RequestPipeline(app)
    yield
    freshness.close()
    await store.close()


async def _archive(app: web.Application) -> AsyncIterator[None]:
    config = app[app_keys.CONFIG]
    app[app_keys.ARCHIVE] = archive = Archive(
        config.archive_path, config.database, app[app_keys.HEALTH], app[app_keys.STORE].keys
    )
    next_confirms = config.retention.fetch_confirmation == NEXT_FETCH
    app[app_keys.FETCHING] = MessageFetcher(
        app[app_keys.GROUPS], app[app_keys.STORE], archive, app[app_keys.CONTEXT], next_confirms=next_confirms
    )
    app[app_keys.TAKING_BACK] = Withdrawals(app[app_keys.STORE], archive, app[app_keys.CONTEXT])
    app[app_keys.REHEARSALS] = Rehearsals(app[app_keys.STORE], archive, app[app_keys.CONTEXT])
    yield
    await archive.close()
