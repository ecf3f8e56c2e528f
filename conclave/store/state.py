"""What the server knows of its own last run: its policy settings, and when it was last alive."""

import json
import sqlite3

from conclave.policy import PolicySettings, session_lag
from conclave.store import marks


def stored_policy(connection: sqlite3.Connection) -> PolicySettings | None:
    """Return the settings that the server last ran with; None before its first run."""
    row = connection.execute("SELECT policy_settings FROM server_state").fetchone()
    return PolicySettings.from_mapping(json.loads(row[0])) if row else None


def begin_serving(connection: sqlite3.Connection, policy: PolicySettings, now: int) -> None:
    """Make ``policy`` the settings in force.

    Where they differ from those of the last run, every group's marks are settled under the old ones as of
    the second at which the server was last alive. After a crash the sessions that were in use near its end
    get back the extension that was not written yet.
    """
    row = connection.execute("SELECT last_alive, stopped_cleanly FROM server_state").fetchone()
    former = stored_policy(connection)
    if row and former:
        marks.settle_all(connection, former, policy, row["last_alive"])
        if not row["stopped_cleanly"]:
            lag = session_lag(former.token_ttl_seconds)
            connection.execute(
                "UPDATE sessions SET expires_at = expires_at + ? WHERE expires_at >= ?", (lag, row["last_alive"] - lag)
            )
    connection.execute(
        "INSERT OR REPLACE INTO server_state (id, policy_settings, last_alive, stopped_cleanly) VALUES (1, ?, ?, 0)",
        (json.dumps(policy.to_mapping()), now),
    )


def still_alive(connection: sqlite3.Connection, now: int, *, stopping: bool = False) -> None:
    """Note that the server ran at ``now``; with ``stopping``, that it ends here and has written everything."""
    connection.execute("UPDATE server_state SET last_alive = ?, stopped_cleanly = ?", (now, stopping))
