"""Start worker processes, talk to them through one protocol, and end them."""
