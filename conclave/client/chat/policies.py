"""What a group's setting comes to at this server. Pure."""

from uuid import UUID

from conclave.client.chat import formatting
from conclave.wire.results import RetentionConfiguration, RetentionInfo


def effective(group_id: UUID, expiry: int, server: int, configured: RetentionConfiguration) -> int:
    """Return the effective expiry that ``expiry`` would have as a group's own setting.

    ``expiry`` and ``server``, the server's message_retention: -1, 0 or seconds. ``configured``: what the operator has
    set, in milliseconds: a policy for this group alone, which comes first; one for groups without their own, which has
    the server's in it; and limits. The rule is that of docs/retention.md, "The effective policy".
    """
    if (own := configured.policies.get(str(group_id))) is not None:
        return _seconds(own)
    if expiry == formatting.KEEP:
        return _seconds(configured.policies.get("*", {}))
    if formatting.AFTER_FETCH in (server, expiry):
        return formatting.AFTER_FETCH
    limit = configured.limits.get("max_lifetime", {})
    within = max(expiry, limit.get("min", 0) // 1000)
    within = min(within, limit["max"] // 1000) if "max" in limit else within
    return within if server == formatting.KEEP else min(within, server)


def told(old: RetentionInfo, new: RetentionInfo, admin: str, went: int) -> str:
    """Say that messages live for another time, who has decided it, and what that hides.

    ``admin``: who has set what the group has, with the verb: the operator's decisions leave that alone. ``went``: how
    many messages that were here are hidden.
    """
    who = admin if new.group_expiry_seconds != old.group_expiry_seconds else "the operator has"
    text = f"messages are {formatting.policy(new.effective_expiry_seconds)} from now on: {who} set that"
    if not went:
        return text
    return f"{text}; {formatting.count(went, 'message')} that {'was' if went == 1 else 'were'} here went with it"


def _seconds(policy: dict[str, int]) -> int:
    return policy["max_lifetime"] // 1000 if "max_lifetime" in policy else formatting.KEEP
