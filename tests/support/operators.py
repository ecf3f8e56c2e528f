"""Asks the operators' listener of a server process, as an operator with its token does."""

import re
from urllib.parse import urlencode
from urllib.request import Request, urlopen

TOKEN = "0123456789abcdef" * 2
ADMIN = f'token = "{TOKEN}"\nallow_actions = true\n'
"""What the server needs in ``[admin]``."""


def ask(admin_url: str, path: str, form: dict[str, str] | None = None) -> str:
    """Return what it answers. ``form``: what is sent."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": admin_url}
    data = urlencode(form).encode() if form else None
    return str(urlopen(Request(f"{admin_url}{path}", data, headers)).read().decode())


def run_at_once(admin_url: str) -> None:
    """Have cleanup do each job at once, by the page."""
    form = r'action="/actions/run"><input type="hidden" name="ticket" value="([^"]+)"'
    ask(admin_url, "/actions/run", {"ticket": re.findall(form, ask(admin_url, "/"))[0]})
