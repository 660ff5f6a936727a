"""The HTTP application around the services: routes, limits, callers, errors, metrics."""
