"""Start worker processes, exchange messages with them through one protocol, and end them."""
