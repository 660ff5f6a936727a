"""Requests and answers as they are on the wire: what the endpoint validates and what its clients read."""
