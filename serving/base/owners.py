"""Whose rows are whose in the tables of the endpoint: a caller's, or a namespace's."""

_NAMESPACES = "/namespaces/"


def owner_of(caller: str, namespace: str = "") -> str:
    """Whose evidence counts: the namespace's, where one is given, else the caller's. No two share a key."""
    if namespace:
        return _NAMESPACES + namespace
    return f"/{caller}" if caller.startswith("/") else caller


def namespace_of(owner: str) -> str:
    """Empty for a caller."""
    return owner.removeprefix(_NAMESPACES) if owner.startswith(_NAMESPACES) else ""
