"""Build stores from images. Each package below states its purpose in its first sentence; none needs torch."""
