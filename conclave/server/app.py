"""Builds the application: its resources, middlewares and routes."""

from collections.abc import AsyncIterator

from aiohttp import web

from conclave import keys
from conclave.actions.context import Context
from conclave.actions.messages import Fetching, Reading, Sending
from conclave.actions.quotas import quotas_of
from conclave.actions.retention import Forecasting
from conclave.actions.timers import Telling
from conclave.archive.reader import Archive
from conclave.auth.activity import SessionActivity
from conclave.auth.passwords import Passwords
from conclave.auth.throttle import Throttle
from conclave.budget import Budget
from conclave.cache.freshness import Freshness
from conclave.cache.groups import RememberedGroups
from conclave.cache.sessions import RememberedSessions
from conclave.clock import Clock, SystemClock
from conclave.config.in_force import InForce
from conclave.config.retention import NEXT_FETCH
from conclave.config.settings import Config
from conclave.events import KEEP_ALIVE_SECONDS, Events, News
from conclave.health.parts import Health, Phase
from conclave.health.storage import Storage
from conclave.measures import Requests
from conclave.server import duties, middleware
from conclave.server.routes import add_routes
from conclave.steady_clock import SteadyClock
from conclave.store.database import Database
from conclave.system import certificate
from conclave.system.reserve import reserves
from conclave.wire.exchange import MAX_BODY_BYTES


def create_app(config: Config, clock: Clock | None = None, *, accepts_change: bool = False) -> web.Application:
    """Build the server; its resources are opened when it starts.

    ``accepts_change``: an operator agrees to a large change of the policy.
    """
    app = web.Application(middlewares=[middleware.around], client_max_size=MAX_BODY_BYTES)
    app[keys.IN_FORCE] = InForce(config, certificate.expiry(config.tls_cert_path))
    app[keys.ACCEPTS_CHANGE] = accepts_change
    app[keys.CLOCK] = steady = SteadyClock(clock or SystemClock())
    app[keys.HEALTH] = Health()
    app[keys.PASSWORDS] = Passwords()
    app[keys.THROTTLE] = Throttle(config.limits, app[keys.PASSWORDS], steady)
    app[keys.REQUESTS] = Requests()
    app[keys.BUDGET] = Budget(config.limits.response_bytes)
    app[keys.ACTIVITY] = SessionActivity(config.token_ttl_seconds)
    app[keys.CONTEXT] = Context(config.policy, steady, quotas=quotas_of(config.limits, steady))
    app[keys.EVENTS] = _events(app)
    app[keys.TELLING] = Telling(app[keys.EVENTS])
    app.on_response_prepare.append(middleware.add_headers)
    app.on_shutdown.append(_stop)
    add_routes(app)
    app.cleanup_ctx.extend([_store, duties.look_at_storage, duties.keep_ledger, _archive, duties.try_archive])
    app.cleanup_ctx.extend([duties.stay_alive, duties.end_timers, duties.keep_sessions, duties.forward_news])
    app.cleanup_ctx.extend([duties.look_for_overdue, _streams, _serving])
    return app


def _events(app: web.Application) -> Events:
    activity, clock, ttl = app[keys.ACTIVITY], app[keys.CLOCK], app[keys.IN_FORCE].config.token_ttl_seconds

    def keep(session_id: int) -> None:
        activity.keep(session_id, clock.now())

    return Events(keep, keep_alive_seconds=min(KEEP_ALIVE_SECONDS, ttl / 2))


async def _stop(app: web.Application) -> None:
    app[keys.HEALTH].phase = Phase.STOPPING
    app[keys.EVENTS].end_all()


async def _serving(app: web.Application) -> AsyncIterator[None]:
    app[keys.HEALTH].phase = Phase.SERVING
    yield
    app[keys.HEALTH].phase = Phase.STOPPING


async def _streams(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[keys.EVENTS].gone()  # they have been ending since the server began to stop


async def _store(app: web.Application) -> AsyncIterator[None]:
    config = app[keys.IN_FORCE].config
    app[keys.STORAGE] = storage = Storage(config.database, reserves(config), MAX_BODY_BYTES, app[keys.HEALTH])

    def publish(news: list[News]) -> None:
        app[keys.GROUPS].hear(news)
        app[keys.EVENTS].publish(news)

    app[keys.STORE] = store = await Database.open(config.database, publish, storage)
    app[keys.FRESHNESS] = freshness = Freshness(config.database, app[keys.CLOCK], storage)
    app[keys.SESSIONS] = RememberedSessions(store, freshness)
    app[keys.GROUPS] = RememberedGroups(freshness)
    app[keys.SENDING] = Sending(store, app[keys.CONTEXT])
    app[keys.READING] = Reading(store, app[keys.CONTEXT])
    app[middleware.AROUND] = middleware.Around(app)
    yield
    freshness.close()
    await store.close()


async def _archive(app: web.Application) -> AsyncIterator[None]:
    config = app[keys.IN_FORCE].config
    app[keys.ARCHIVE] = archive = Archive(config.archive_path, config.database, app[keys.HEALTH])
    next_confirms = config.retention.fetch_confirmation == NEXT_FETCH
    app[keys.FETCHING] = Fetching(
        app[keys.GROUPS], app[keys.STORE], archive, app[keys.CONTEXT], next_confirms=next_confirms
    )
    app[keys.FORECASTING] = Forecasting(app[keys.STORE], archive, app[keys.CONTEXT])
    yield
    await archive.close()
