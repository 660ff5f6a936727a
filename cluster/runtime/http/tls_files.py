"""TLS of callers: certificate, key and the callers' CA from files, reloaded as they are rotated."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

_LOG = logging.getLogger(__name__)
_CHECK_S = 10.0


class TlsError(ValueError):
    """Files that no server can be run with; the message says what is wrong."""


class TlsFiles:
    """``tls.crt``, ``tls.key`` and ``ca.crt`` of a folder, as a Secret is mounted.

    Callers have to show a certificate signed by ``ca.crt``: keep a CA for them alone. With ``authority``, by what that
    returns (PEM), and no ``ca.crt`` is read; while that is empty, nobody may call. Raises TlsError where the files are
    not there or do not fit together.
    """

    def __init__(self, folder: Path, authority: Callable[[], bytes] | None = None) -> None:
        self._folder, self._authority = folder, authority
        self._loaded = self._read()
        self._current = self._context(self._loaded[2])
        # What a context trusts can only grow, and a listener keeps the one it began with. So each handshake is handed
        # over to the context of the latest files: also without a server name in it, verification and all.
        self.context = self._context(self._loaded[2])
        self.context.sni_callback = self._hand_over

    async def run(self, others_may_call: Callable[[], None], check_s: float = _CHECK_S) -> None:
        """Follow the files until cancelled; ``others_may_call`` is called when the callers' CA was replaced.

        What cannot be used is logged, and the old files stay in force.
        """
        while True:
            await asyncio.sleep(check_s)
            if self.reload():
                others_may_call()

    def reload(self) -> bool:
        """Whether the callers' CA was replaced, so that callers have to show a certificate anew."""
        try:
            result = self._read()
            if result == self._loaded:
                return False
            self._current = self._context(result[2])
        except TlsError as error:
            _LOG.error("the old certificate stays: %s", error)
            return False
        before, self._loaded = self._loaded, result
        _LOG.info("the certificate was replaced" if result[:2] != before[:2] else "the callers' CA was replaced")
        return result[2] != before[2]

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> tuple[bytes, bytes, bytes]:
        try:
            certificate, key = ((self._folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
            authority = (self._folder / "ca.crt").read_bytes() if self._authority is None else self._authority()
        except OSError as error:
            names = "tls.crt, tls.key and ca.crt" if self._authority is None else "tls.crt and tls.key"
            raise TlsError(f"{self._folder} needs {names}: {error}") from error
        return certificate, key, authority

    def _context(self, authority: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["http/1.1"])
        # A resumed session would be accepted without a check of its certificate.
        context.num_tickets = 0
        try:
            context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
            if authority or self._authority is None:
                context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsError(f"the certificates in {self._folder} cannot be used: {error}") from error
        return context
