"""Request and response messages, named as the protocol names them."""
