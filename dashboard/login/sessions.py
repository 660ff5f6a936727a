"""Sessions: what a browser keeps between requests, encrypted, so that replicas need no common store.

A session holds the token that was shown at the login, or the user that a provider named, and its end. The cookie is
out of reach of scripts and is sent to these pages alone.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from cryptography.fernet import Fernet, InvalidToken

from kopt.dashboard.login.authority import User

LONGEST_COOKIE = 3_800
"""Browsers keep 4,096 characters with name and attributes."""


class SessionTooLongError(ValueError):
    """More than a cookie can hold."""


@dataclass(frozen=True)
class Session:
    """Until ``until_s`` (Unix time). Either the token that shows who it is, or the user that a provider named."""

    until_s: float
    token: str = ""
    user: User | None = None


class Sessions:
    """``key`` is Fernet's: 32 bytes in URL-safe base64. Replicas that share it share sessions."""

    def __init__(self, key: str, *, secure: bool, clock: Callable[[], float] = time.time) -> None:
        """``secure``: the pages are reached by https, and the cookie is never sent by http. Raises ValueError for
        another key."""
        self._fernet, self._clock, self.secure = Fernet(key), clock, secure
        # The prefix keeps other hosts of the domain from setting it (RFC 6265bis).
        self.cookie = "__Host-kopt" if secure else "kopt"

    def sealed(self, session: Session) -> str:
        """The cookie's value. Raises SessionTooLongError."""
        sealed = self._fernet.encrypt(json.dumps(asdict(session), separators=(",", ":")).encode()).decode()
        if len(sealed) > LONGEST_COOKIE:
            raise SessionTooLongError(f"{len(sealed):,} characters, {LONGEST_COOKIE:,} fit")
        return sealed

    def seal(self, text: str) -> str:
        """A text for a cookie of the login itself."""
        return self._fernet.encrypt(text.encode()).decode()

    def unsealed(self, value: str, within_s: int) -> str:
        """What ``seal`` sealed at most ``within_s`` ago; empty for anything else."""
        try:
            return self._fernet.decrypt(value[:LONGEST_COOKIE].encode(), ttl=within_s).decode()
        except InvalidToken:
            return ""

    def opened(self, value: str) -> Session | None:
        """None for what was not sealed with the key, or has ended."""
        if not value or len(value) > LONGEST_COOKIE:
            return None
        try:
            document = json.loads(self._fernet.decrypt(value.encode()))
            user = document["user"]
            session = Session(
                float(document["until_s"]),
                str(document["token"]),
                None if user is None else User(user["name"], user["uid"], tuple(user["groups"])),
            )
        except (InvalidToken, ValueError, KeyError, TypeError):
            return None
        return session if self._clock() < session.until_s else None
