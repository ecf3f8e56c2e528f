"""Human-readable text: log lines on a console, and values in commands and on the operators' page."""

import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

from conclave.retention.durations import duration_text, duration_words


def visible(text: str) -> str:
    """Escape control characters, direction marks and zero-width characters."""
    if text.isprintable():
        return text  # the common case
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def visible_lines(text: str) -> str:
    """Escape as ``visible`` does, but keep line ends."""
    return "\n".join(map(visible, text.split("\n")))


def second(seconds: int) -> str:
    """Format a Unix second in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(seconds)  # beyond the year 9999


def counted(count: int, noun: str) -> str:
    """Format a number with a noun: 1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def about(seconds: int) -> str:
    """Format seconds in the largest unit, up to days, that gives at least 2. Rounds down."""
    unit = next((unit for unit in (86_400, 3_600, 60) if seconds >= 2 * unit), 1)
    return duration_text(seconds - seconds % unit) if seconds > 0 else "0s"


def size_text(count: int) -> str:
    """Format bytes in the largest fitting unit: 900 B, 1.5 MB. 1 KB is 1,000 B."""
    value, units = float(count), iter(("B", "KB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while abs(value) >= 999.95 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{count:,} B" if unit == "B" else f"{value:,.1f} {unit}"


_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}
"""The terminal colours of log levels: dim, yellow, red."""

_HIDDEN_FIELDS = ("event", "level", "timestamp", "request_id", "exception")
"""Fields that a console line shows differently, or omits."""

_PREFIX, _PLACEHOLDER = "/api/v1", re.compile(r"\{[^}]*\}")

_routes: dict[str, str] = {}


def request_line(method: str, route: str, status: int, ms: float) -> str:
    """Format the line of a request: ``21:57:38 POST /groups/…/messages 200 1.9 ms``."""
    short_route = _routes.get(route)
    if short_route is None:
        short_route = _routes[route] = _PLACEHOLDER.sub("…", route.removeprefix(_PREFIX))
    return f"{time.strftime('%H:%M:%S')} {method} {short_route} {status} {ms} ms"


class ConsoleRenderer:
    """Renders a structlog event as a line, followed by its traceback."""

    def __init__(self, *, coloured: bool) -> None:
        """``coloured``: whether to use terminal colours."""
        self._coloured = coloured

    def __call__(self, _: Any, __: str, fields: MutableMapping[str, Any]) -> str:
        """Return the line."""
        level, text = str(fields.get("level", "info")), _words(fields)
        line = text if level in ("info", "debug") else f"{level}: {text}"
        if self._coloured and level in _COLOURS:
            line = f"\x1b[{_COLOURS[level]}m{line}\x1b[0m"
        traceback = fields.get("exception")
        return f"{time.strftime('%H:%M:%S')} {line}" + (f"\n{visible_lines(traceback)}" if traceback else "")


def _words(fields: Mapping[str, Any]) -> str:
    event = str(fields.get("event", ""))
    if event in _SENTENCES:
        return _SENTENCES[event](fields)
    values = ", ".join(
        f"{name.replace('_', ' ')} {_value_text(fields[name])}" for name in fields if name not in _HIDDEN_FIELDS
    )
    return visible(event.replace("_", " ")) + (f": {values}" if values else "")


def _value_text(value: Any) -> str:
    """Format a value in one line."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{visible(str(name))}: {_value_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value_text, value))
    return visible(str(value))


def _bytes(size: int) -> str:
    """Format bytes: 24 KB."""
    units = ["B", "KB", "MB", "GB"]
    while size >= 1024 and len(units) > 1:
        size = round(size / 1024)
        del units[0]
    return f"{size:,} {units[0]}"


def _run(fields: Mapping[str, Any]) -> str:
    """Format a cleanup run: ``cleanup: 40 erased (30 expired, 10 fetched), 24 KB returned, 2 s``."""
    erased_by_rule = {str(rule).replace("_", " "): count for rule, count in fields["deleted"].items() if count}
    parts = [f"{sum(erased_by_rule.values()):,} erased"]
    if erased_by_rule:
        parts[0] += f" ({', '.join(f'{count:,} {rule}' for rule, count in erased_by_rule.items())})"
    if fields["archived"]:
        parts.append(f"{fields['archived']:,} archived")
    if fields["held"]:
        parts.append(f"{fields['held']:,} kept by holds")
    parts.append(f"{_bytes(fields['bytes_returned'] + fields['archive_bytes_returned'])} returned")
    seconds = fields["finished_at"] - fields["started_at"]
    parts.append(f"{seconds:,} s" if seconds else "less than 1 s")
    title = "cleanup" if fields["job"] == "everything" else f"cleanup ({visible(fields['job'])})"
    error_text = f"failed: {visible(fields['error'])}; " if fields["error"] else ""
    return f"{title}: {error_text}{', '.join(parts)}"


def _listening(fields: Mapping[str, Any]) -> str:
    """Format the start of a server."""
    addresses = f"listening at {fields['url']}"
    if fields["admin_url"]:
        addresses += f", for operators at {fields['admin_url']}"
    facts = ("configuration", "database", "retention", "cleanup", "archive")
    return "; ".join(
        [f"conclave {fields['version']}", addresses, *(f"{name}: {_value_text(fields[name])}" for name in facts)]
    )


def _changed(fields: Mapping[str, Any]) -> str:
    """Format a change of the policy."""
    settings = ", ".join(
        f"{name} from {_value_text(old)} to {_value_text(new)}" for name, (old, new) in fields["changed"].items()
    )
    bound = "" if fields["is_exact"] else "at most "
    return (
        f"policy changed: {settings}; {fields['groups']:,} groups have another policy, {fields['messages_hidden']:,}"
        f" messages hidden at once, and {bound}{fields['archived_hidden']:,} in the archive"
    )


def _setting(fields: Mapping[str, Any]) -> str:
    return f"{visible(fields['setting'])}: {visible(fields['means'])}"


def _reloaded(fields: Mapping[str, Any]) -> str:
    """Format a reload."""
    certificate = "; the certificate was read again" if fields["certificate"] == "read again" else ""
    return f"reloaded: log level {fields['logs_from']}{certificate}"


_SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "listening": _listening,
    "cleanup_run": _run,
    "policy_changed": _changed,
    "ambiguous_setting": _setting,
    "doubtful_setting": _setting,
    "cleanup_unavailable": lambda fields: f"cleanup is not available: {visible(fields['reason'])}",
    "clock_wrong": lambda fields: f"the clock is wrong: {visible(fields['fault'])}; remedy: `{fields['remedy']}`",
    "cleanup_ready": lambda fields: (
        f"cleanup is ready: {fields['engine']}, every {duration_words(fields['interval_seconds'])}"
    ),
    "reloaded": _reloaded,
    "reload_refused": lambda fields: f"reload refused, nothing has changed: {visible(fields['fault'])}",
    "needs_restart": lambda fields: f"needs a restart: {_value_text(fields['settings'])}",
    "request": lambda fields: f"{fields['method']} {fields['route']} {fields['status']} {fields['ms']} ms",
    "spark_log": lambda fields: f"Spark: {visible(fields['message'])}",
}
"""The functions that format an event as a sentence. Other events are shown as name and values."""
