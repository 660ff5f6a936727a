"""Who may call a server of ours: the CA of callers, from a file that is followed as it is replaced."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

_LOG = logging.getLogger(__name__)
_REREAD_S = 10.0


class ClientAuthorityError(ValueError):
    """A file by which no caller can be recognised; the message says what is wrong."""


class ClientAuthority:
    """Callers have to show a certificate signed by ``file`` (PEM): keep a CA for them alone.

    Raises ClientAuthorityError where the file cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._bundle = self._read()

    def guard(self, context: ssl.SSLContext) -> None:
        """Have a fresh server context ask for such a certificate."""
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A resumed session would be accepted without a check of its certificate.
        context.num_tickets = 0
        context.load_verify_locations(cadata=self._bundle)
        context.verify_mode = ssl.CERT_REQUIRED

    async def run(self, replaced: Callable[[], None], reread_s: float = _REREAD_S) -> None:
        """Follow the file until cancelled. What cannot be used is logged, and the old one stays in force."""
        while True:
            await asyncio.sleep(reread_s)
            try:
                bundle = self._read()
            except ClientAuthorityError as error:
                _LOG.error("the old CA of callers stays: %s", error)
                continue
            if bundle != self._bundle:
                self._bundle = bundle
                _LOG.info("the CA of callers was replaced: callers have to show a certificate anew")
                replaced()

    def _read(self) -> str:
        try:
            bundle = self._file.read_text(encoding="ascii")
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=bundle)
        except (OSError, ValueError) as error:
            raise ClientAuthorityError(f"{self._file} holds no certificates of a CA (PEM): {error}") from error
        return bundle
