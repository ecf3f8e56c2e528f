"""The one route table."""

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from conclave import keys
from conclave.api import accounts, commits, events, groups, health, members, messages, retention, users

API = "/api/v1"


@dataclass(frozen=True)
class Route:
    """An endpoint. Public ones need no token; a HEAD is answered as a GET without its body, if at all."""

    method: str
    path: str
    handler: Handler
    public: bool = False
    head: bool = True


ROUTES = (
    Route("GET", "/healthz", health.health, public=True),
    Route("POST", f"{API}/register", accounts.register, public=True),
    Route("POST", f"{API}/login", accounts.login, public=True),
    Route("POST", f"{API}/logout", accounts.logout),
    Route("GET", f"{API}/me", users.me),
    Route("GET", f"{API}/users/{{username}}", users.by_name),
    Route("GET", f"{API}/users/by-id/{{user_id}}", users.by_id),
    Route("POST", f"{API}/groups", groups.create),
    Route("GET", f"{API}/groups", groups.list_own),
    Route("GET", f"{API}/groups/public", groups.list_public),
    Route("PATCH", f"{API}/groups/{{group_id}}", groups.update),
    Route("POST", f"{API}/groups/{{group_id}}/delete", groups.delete),
    Route("GET", f"{API}/groups/{{group_id}}/group-info", commits.group_info),
    Route("POST", f"{API}/groups/{{group_id}}/commit", commits.upload),
    Route("GET", f"{API}/groups/{{group_id}}/retention", retention.policy),
    Route("POST", f"{API}/groups/{{group_id}}/join", members.join),
    Route("POST", f"{API}/groups/{{group_id}}/leave", members.leave),
    Route("POST", f"{API}/groups/{{group_id}}/messages", messages.send),
    Route("GET", f"{API}/groups/{{group_id}}/messages", messages.fetch, head=False),
    Route("GET", f"{API}/events", events.stream, head=False),
)


def add_routes(app: web.Application) -> None:
    """Give ``app`` its endpoints."""
    for route in ROUTES:
        path = route.path.replace("}", ":[^/]+}")  # whatever stands for an id is a path of ours, if a malformed one
        if route.method == "GET":
            app.router.add_get(path, route.handler, allow_head=route.head)
        else:
            app.router.add_route(route.method, path, route.handler)
    app[keys.PUBLIC] = frozenset(route.handler for route in ROUTES if route.public)
