"""`prep report`: a store as one HTML page."""
