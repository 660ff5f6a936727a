"""Redaction of the log text that is stored: one truncated line of evidence, without secrets."""

from kopt.core.redaction import redact

LONGEST = 400


def kept_text(text: str, longest: int = LONGEST) -> str:
    """The text truncated, redacted and printable, fit to be stored and displayed.

    >>> kept_text("saving to s3://me:hunter2@store with api_key=abcdef")
    'saving to s3://***@store with api_key=***'
    """
    # Redact more than is kept, or half a secret could remain at the cut.
    text = redact(text[: longest + 4000])
    return "".join(name if name.isprintable() else " " for name in text[:longest])
