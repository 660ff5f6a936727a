"""Where the API server is and how to sign in: a service account's files, or a kubeconfig.

Kubeconfigs (client certificates, tokens, exec plugins, OIDC) are read by the official client's loader, which costs
30 MiB and most of a second to import; a pod's service account, two files, is read here.
"""

import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kopt.cluster.client.errors import NoCluster
from kopt.core.settings import KUBE_CONTEXT

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LASTS_S = 60.0
"""A projected token is rewritten long before it expires; client-go reads it again every minute, too."""


@dataclass(frozen=True)
class Credentials:
    """What a request needs. ``authorization`` is the whole header, empty where a client certificate signs in."""

    host: str
    authorization: str
    tls: ssl.SSLContext | None
    server_name: str | None = None
    proxy: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.host!r})"


class Access(Protocol):
    """A source of credentials that are good now."""

    async def credentials(self) -> Credentials: ...

    async def renew(self) -> Credentials:
        """After the server answered 401: what there is afresh."""
        ...


def find_access(kubeconfig: Path | None, environ: Mapping[str, str], *, account: Path = SERVICE_ACCOUNT) -> Access:
    """The kubeconfig given, else ``KUBECONFIG``, else the pod's service account, else ``~/.kube/config``.

    ``KOPT_KUBE_CONTEXT`` names a context of it, and leaves the service account, which has none, aside.

    Raises NoCluster when there is none of them.
    """
    context = environ.get(KUBE_CONTEXT) or None
    if kubeconfig is not None:
        return KubeconfigAccess(str(kubeconfig), context)
    if environ.get("KUBECONFIG"):
        return KubeconfigAccess(environ["KUBECONFIG"], context)
    if context is None and environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").is_file():
        return ServiceAccountAccess(environ, account)
    default = Path.home() / ".kube" / "config"
    if default.is_file():
        return KubeconfigAccess(str(default), context)
    raise NoCluster("no cluster is configured: set KUBECONFIG, or run in a pod with a service account")


class ServiceAccountAccess:
    """The token and CA that the kubelet mounts into a pod; both are read again as they are rotated."""

    def __init__(self, environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> None:
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._folder = folder
        self._ca = ""
        self._cached: tuple[float, Credentials] | None = None

    async def credentials(self) -> Credentials:
        if self._cached is not None and time.monotonic() - self._cached[0] < _TOKEN_LASTS_S:
            return self._cached[1]
        return await self.renew()

    async def renew(self) -> Credentials:
        try:
            token = (self._folder / "token").read_text(encoding="ascii").strip()
            ca = (self._folder / "ca.crt").read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise NoCluster(f"the service account cannot be read: {error}") from error
        before = self._cached[1] if self._cached else None
        # The same context as long as the CA is the same, or every minute would begin with new connections.
        tls = before.tls if before is not None and ca == self._ca else _context(cadata=ca)
        self._ca = ca
        credentials = Credentials(self._host, f"Bearer {token}", tls)
        self._cached = (time.monotonic(), credentials)
        return credentials


class KubeconfigAccess:
    """One or several kubeconfig files (separated as ``KUBECONFIG`` is), with a context, or the current one."""

    def __init__(self, paths: str, context: str | None = None) -> None:
        self._paths, self._context = paths, context
        self._cached: Credentials | None = None

    async def credentials(self) -> Credentials:
        return self._cached or await self.renew()

    async def renew(self) -> Credentials:
        import yaml
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException, load_kube_config

        if not any(Path(path).expanduser().exists() for path in self._paths.split(os.pathsep)):
            raise NoCluster(f"there is no kubeconfig {self._paths}; name one by --kubeconfig or KUBECONFIG")
        result = Configuration()
        try:
            await load_kube_config(
                self._paths, context=self._context, client_configuration=result, persist_config=False
            )
            tls = _context(result.ssl_ca_cert, certificate=result.cert_file, key=result.key_file)
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            # The loader meets a file that is no kubeconfig with whatever Python raises for it.
            raise NoCluster(f"{self._paths} cannot be used as a kubeconfig: {error}") from error
        if not result.verify_ssl:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        authorization = result.api_key.get("BearerToken", "")
        self._cached = Credentials(
            result.host,
            authorization,
            tls if result.host.startswith("https") else None,
            result.tls_server_name or None,
            result.proxy or None,
        )
        return self._cached


def _context(
    cafile: str | None = None, *, cadata: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    # From Python 3.13 on RFC 5280 is enforced to the letter, which CAs that clusters run on do not keep to.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate:
        context.load_cert_chain(certificate, key)
    return context
