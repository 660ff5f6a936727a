"""The little text of logs that is kept: one line of evidence, cut, without what looks like a secret.

Patterns after gitleaks' default rules (tokens with a known head, and values that are called secret).
"""

import re

LONGEST = 400
_HIDDEN = "***"
_SECRETS = (
    re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.)[\w.-]{8,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"),
    re.compile(r"(?i)(?<=bearer )[^\s,;]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),
    re.compile(
        r"(?i)(?<![a-z])(?:[\w-]*(?:secret|passw(?:or)?d|credential|api[_-]?key|access[_-]?key|auth[_-]?token)[\w-]*"
        r"|token)['\"]?\s*[=:]\s*['\"]?(?P<value>[^\s'\",;]{4,})"
    ),
)


def kept_text(text: str, longest: int = LONGEST) -> str:
    """The text as it may be stored and shown; printable.

    >>> kept_text("saving to s3://me:hunter2@store with api_key=abcdef")
    'saving to s3://***@store with api_key=***'
    """
    # More than is kept, or half a secret at the edge would stay.
    text = text[: longest + 200]
    for pattern in _SECRETS:
        text = pattern.sub(_hidden, text)
    return "".join(one if one.isprintable() else " " for one in text[:longest])


def _hidden(found: re.Match[str]) -> str:
    value = found.groupdict().get("value")
    return found[0][: -len(value)] + _HIDDEN if value else _HIDDEN
