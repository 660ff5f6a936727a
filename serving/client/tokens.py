"""The token that a client shows the prediction endpoint (``KOPT_AUTH=token`` there).

``KOPT_TOKEN`` holds one; ``KOPT_TOKEN_FILE`` names a file with one; else it is the projected service-account token that
the chart mounts into our pods, which is for the endpoint only: the API server does not take it. A pod's own token for
the API server is never sent. Tokens are in no log and no message.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

MOUNTED = Path("/var/run/secrets/kaiwo.ai/predictions/token")
_LONGEST = 16_384


class TokenError(RuntimeError):
    """A configured token cannot be read; the message names where it was looked for."""


def token_from(environ: Mapping[str, str], *, mounted: Path = MOUNTED) -> Callable[[], str] | None:
    """What gives the token for one call; None where none is configured. It raises TokenError.

    Files are read again for every call: the kubelet replaces a token before it expires.
    """
    if text := environ.get("KOPT_TOKEN", "").strip():
        checked = _checked(text, "KOPT_TOKEN")
        return lambda: checked
    named = environ.get("KOPT_TOKEN_FILE", "")
    path = Path(named) if named else mounted
    return (lambda: _read(path)) if named or path.is_file() else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from None
    return _checked(content.decode("ascii", errors="replace").strip(), str(path))


def _checked(text: str, origin: str) -> str:
    # Line breaks in a token could end the header and inject another one.
    if not text or len(text) > _LONGEST or not text.isascii() or not text.isprintable() or " " in text:
        raise TokenError(f"{origin} holds no bearer token")
    return text
