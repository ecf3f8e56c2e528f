"""The client port: accepts connections, splits their bytes into requests, and answers each.

``port`` listens, ``admission`` bounds how many connections there are, ``connection`` is one of them. A request is
answered by ``fast_path`` or by aiohttp (``delegation``). ``framing`` finds its end, ``responding`` writes.
"""

from conclave.server.client_port.admission import CLOSE_REASONS, ConnectionLimits
from conclave.server.client_port.fast_path import FastPath
from conclave.server.client_port.port import ClientPort

__all__ = ["CLOSE_REASONS", "ClientPort", "ConnectionLimits", "FastPath"]
