"""The keys under which the application stores the objects that handlers use."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

from conclave.actions.context import Context
from conclave.actions.messages import MessageFetcher, MessageSender, ReadReceiptWriter
from conclave.actions.retention import Rehearsals
from conclave.actions.taking_back import Withdrawals
from conclave.actions.timers import RedactionNotifier
from conclave.archive.reader import Archive
from conclave.auth.passwords import Passwords
from conclave.auth.throttle import Throttle
from conclave.auth.tokens import SessionActivity
from conclave.cache.freshness import Freshness, SessionCache
from conclave.cache.groups import GroupCache
from conclave.clock.steady import SteadyClock
from conclave.config.settings import Config
from conclave.events import Events
from conclave.health.clock_watch import ClockWatch
from conclave.health.parts import Health
from conclave.health.storage import Storage
from conclave.measures import Requests
from conclave.response_memory import Budget
from conclave.store.engine.database import Database
from conclave.wire.exchange import Endpoint
from conclave.wire.response_head import CrossOrigin

CONFIG = web.AppKey("config", Config)
ACCEPTS_CHANGE = web.AppKey("accepts_change", bool)
ACCEPTS_OLDER = web.AppKey("accepts_older", bool)
CLOCK = web.AppKey("clock", SteadyClock)
FRESHNESS = web.AppKey("freshness", Freshness)
SESSIONS = web.AppKey("sessions", SessionCache)
GROUPS = web.AppKey("groups", GroupCache)
SENDING = web.AppKey("sending", MessageSender)
FETCHING = web.AppKey("fetching", MessageFetcher)
READING = web.AppKey("reading", ReadReceiptWriter)
TAKING_BACK = web.AppKey("taking_back", Withdrawals)
REHEARSALS = web.AppKey("rehearsals", Rehearsals)
CLOCK_WATCH = web.AppKey("clock_watch", ClockWatch)
STORE = web.AppKey("store", Database)
STORAGE = web.AppKey("storage", Storage)
ARCHIVE = web.AppKey("archive", Archive)
PASSWORDS = web.AppKey("passwords", Passwords)
THROTTLE = web.AppKey("throttle", Throttle)
ACTIVITY = web.AppKey("activity", SessionActivity)
EVENTS = web.AppKey("events", Events)
HEALTH = web.AppKey("health", Health)
REQUESTS = web.AppKey("requests", Requests)
REDACTION_NOTIFIER = web.AppKey("redaction_notifier", RedactionNotifier)
CLOSED_CONNECTIONS: web.AppKey[Counter[str]] = web.AppKey("closed")
"""How many connections the server closed or refused, by reason: see ``admission.CLOSE_REASONS``."""
BUDGET = web.AppKey("budget", Budget)
KEY_PACKAGE_TURN = web.AppKey("inviting", asyncio.Semaphore)
"""Held while a large number of key packages is read and written."""
CONTEXT = web.AppKey("context", Context)
CROSS_ORIGIN = web.AppKey("cross_origin", CrossOrigin)
ENDPOINTS: web.AppKey[Mapping[Handler, Endpoint]] = web.AppKey("endpoints")
"""The endpoints by handler."""
