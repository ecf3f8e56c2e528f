"""The client port: accepts connections, finds their requests, and has each answered.

``port`` listens, ``admission`` bounds how many connections there are, ``connection`` is one of them. A request is
answered by ``fast_path``, or by aiohttp (``delegation``). ``framing`` finds where it ends, ``responding`` writes.
"""

from conclave.server.client_port.admission import CLOSE_REASONS, ConnectionLimits
from conclave.server.client_port.fast_path import FastPath
from conclave.server.client_port.port import ClientPort

__all__ = ["CLOSE_REASONS", "ClientPort", "ConnectionLimits", "FastPath"]
