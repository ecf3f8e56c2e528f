"""What goes over the wire: reading requests, writing responses and events, describing both."""
