"""The little text of logs that is kept: one line of evidence, cut, without secrets."""

from kopt.core.redaction import redact

LONGEST = 400


def kept_text(text: str, longest: int = LONGEST) -> str:
    """The text as it may be stored and shown; printable.

    >>> kept_text("saving to s3://me:hunter2@store with api_key=abcdef")
    'saving to s3://***@store with api_key=***'
    """
    # More than is kept, or half a secret at the edge would stay.
    text = redact(text[: longest + 4000])
    return "".join(name if name.isprintable() else " " for name in text[:longest])
