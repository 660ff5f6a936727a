"""Requests to an API server: credentials, connections, typed errors, and the kinds that are read and written."""
