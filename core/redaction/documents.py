"""Secrets in JSON-like values."""

from collections.abc import Mapping
from typing import Any

from kopt.core.redaction.arguments import redact_arguments
from kopt.core.redaction.texts import redact
from kopt.core.redaction.values import HIDDEN, harmless
from kopt.core.secret_names import names_a_secret


def redact_document(value: Any) -> Any:
    """A JSON-like value: texts redacted, and whole texts where their key, or the ``name`` beside them, says so."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        named = value.get("name")
        secret = isinstance(named, str) and names_a_secret(named)
        return {_key(key): _entry(key, item, secret) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return type(value)(redact_arguments(value))
        return type(value)(redact_document(item) for item in value)
    return value


def _key(key: Any) -> Any:
    return redact(key) if isinstance(key, str) else key


def _entry(key: Any, value: Any, secret: bool) -> Any:
    """A mapping's value; ``secret`` where the mapping's own name says that its ``value`` is one."""
    secret = (secret and key == "value") or (isinstance(key, str) and names_a_secret(key))
    if secret and isinstance(value, str):
        return value if harmless(str(key), value) else HIDDEN
    if secret and isinstance(value, list | tuple):
        return type(value)(HIDDEN if isinstance(item, str) else redact_document(item) for item in value)
    return redact_document(value)
