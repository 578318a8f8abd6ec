"""Builds from object stores and web servers: moto's S3 server and Python's, both on the loopback."""
