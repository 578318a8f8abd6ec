"""What makes the peers' environments, runs them in turn, checks what they deliver, and tells the figures."""
