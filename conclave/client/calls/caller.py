"""What all calls share: the way to the server."""

from conclave.client.transport import Transport


class Caller:
    """Something that calls a server."""

    transport: Transport
