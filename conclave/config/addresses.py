"""Finds the client address of a request, for rate limits. Pure functions."""

import re
from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)
from typing import Any

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

IPV6_PREFIX = 64
"""The prefix length of the IPv6 network that is usually assigned to one household or server."""

MAX_PROXIES = 32
"""The most entries of X-Forwarded-For to read, from the end. A header may have a million."""

UNKNOWN = "unknown"
"""The origin of requests without an address, which count together."""

INTERNET = (IPv4Network("0.0.0.0/0"), IPv6Network("2000::/3"))
"""The addresses that clients come from: all of IPv4, and the global part of IPv6."""

_MAPPED_PREFIX = 96
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


def parse_network(text: str) -> Network:
    """Return an address, or a network such as 10.0.0.0/8. Raises ValueError."""
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_PREFIX and network[0].ipv4_mapped:
        return IPv4Network((network[0].ipv4_mapped, network.prefixlen - _MAPPED_PREFIX))
    return network


def covers_internet(networks: Iterable[Network]) -> bool:
    """Return whether ``networks`` together contain at least half of the IPv4 or IPv6 Internet."""
    network_list = list(networks)
    return any(2 * _count_shared(network_list, internet) >= internet.num_addresses for internet in INTERNET)


def _count_shared(networks: Iterable[Network], whole: Network) -> int:
    """Return how many addresses of ``whole`` are in ``networks``."""
    within: list[Any] = [
        whole if each.supernet_of(whole) else each  # type: ignore[arg-type]  # both are of one version
        for each in networks
        if each.version == whole.version and each.overlaps(whole)
    ]
    return sum(each.num_addresses for each in collapse_addresses(within))


def origin(peer: str | None, forwarded: Iterable[str], trusted: Sequence[Network]) -> str:
    """Return the origin of a request: its IPv4 address, or the first 64 bits of its IPv6 address.

    ``peer``: the address of the connection. ``forwarded``: the X-Forwarded-For headers in order.

    Each proxy appends the address of its client. So the entries are read from the end, as long as a ``trusted`` proxy
    wrote them. An invalid entry stops this, and the request counts for the proxy that wrote it.
    """
    address = _parse(peer or "")
    if address is None:
        return UNKNOWN
    for entry in reversed(",".join(forwarded).rsplit(",", MAX_PROXIES - 1)):
        client = _parse(entry.strip()) if any(address in network for network in trusted) else None
        if client is None:
            break
        address = client
    return str(address) if isinstance(address, IPv4Address) else str(IPv6Network((address, IPV6_PREFIX), strict=False))


def _parse(text: str) -> Address | None:
    """Parse an address with or without a port; return None if it is invalid. IPv4-mapped IPv6 becomes IPv4."""
    with_port = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address((with_port[1] or with_port[2]) if with_port else text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))  # without the interface, fe80::1%eth0
