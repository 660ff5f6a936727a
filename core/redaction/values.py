"""What stands in place of a secret, and values that are none."""

import re

HIDDEN = "***"
VARIABLE = re.compile(r"\$(?:\{[A-Z_][A-Z0-9_]*\}|[A-Z_][A-Z0-9_]*)|\$\([A-Z_][A-Z0-9_]*\)|\{\{[ \w.]*\}\}")
"""A reference to a secret is none."""
_NOTHING = frozenset(
    {"", "none", "null", "nil", "true", "false", "yes", "no", "undefined", "not", "***", "*", "withheld"}
)
NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|\.\d+)(?:e[-+]?\d+)?\s?(?:%|[kmg]?i?b?|ms|us|s|/s|it/s|tok/s)?[,;.)\]}]*")
_NEVER_A_FIGURE = re.compile(r"passw|passp|.pass$|pass_|pwd|pw$|secret(?!s)|otp")
_HARMLESS_AUTH = frozenset(
    {"basic", "token", "kerberos", "oauth", "oauth2", "oidc", "ldap", "mtls", "required", "optional"}
)


def harmless(name: str, value: str) -> bool:
    """Whether a value under the name of a secret is none: nothing, a reference, or a figure of a language model."""
    low = value.strip().lower()
    if low in _NOTHING or VARIABLE.fullmatch(value.strip()) or (value.startswith("<") and value.endswith(">")):
        return True
    if _NEVER_A_FIGURE.search(name.lower()):
        return False
    return bool(NUMBER.fullmatch(low)) or low in _HARMLESS_AUTH
