"""Requests and answers of ``/v1/bandwidth`` and ``/v1/bandwidth/pairs``."""
