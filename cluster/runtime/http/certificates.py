"""A serving certificate in a Secret that all replicas share, rotated before it expires, without a restart.

cert-manager's Secret is used where there is one. Otherwise the replicas rotate by themselves, none of them special:
every write is conditional on the Secret's version, so one of them succeeds and the others see what it wrote.
A rotation is a new CA and a new key in two steps. First the new CA is published beside the old one (``ca.crt`` and
the ``caBundle`` of our webhook configurations), the new pair waiting under ``next.*``; later, when every API server
has had time to see it, the pair is moved to ``tls.*`` and replicas serve with it. The CA's key is never stored.
"""

import asyncio
import base64
import contextlib
import ipaddress
import logging
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kopt.cluster.client.api import ApiError, Conflict, Kube
from kopt.cluster.client.client_authority import ClientAuthority
from kopt.cluster.client.resources import PART_OF, PART_OF_LABEL, SECRETS, Object, Resource
from kopt.cluster.client.versions import is_newer
from kopt.cluster.runtime.informer import Informer

_LOG = logging.getLogger(__name__)
NEXT_FROM = "kaiwo.ai/next-from"
"""Annotation of the Secret: Unix time from which ``next.*`` may be served with."""
_CERT_MANAGER = "cert-manager.io/certificate-name"
_INJECTED = "cert-manager.io/inject-ca-from"
_ATTEMPTS = 5
_RETRY_S = 5.0
_SKEW = timedelta(minutes=5)
"""Clocks of API servers may be behind by this much."""


@dataclass(frozen=True)
class CertificateSettings:
    """Times in seconds."""

    lifetime_s: float = 90 * 86400.0
    renew_before_s: float = 30 * 86400.0
    overlap_s: float = 600.0
    """Between publishing a new CA and serving with it: API servers read webhook configurations with a delay."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap_s < self.renew_before_s < self.lifetime_s:
            raise ValueError(f"{self}: overlap_s < renew_before_s < lifetime_s")


@dataclass(frozen=True)
class Pair:
    """A certificate, its key, and the CA that signed it, all PEM."""

    certificate: bytes
    key: bytes
    authority: bytes

    def __repr__(self) -> str:
        return f"Pair(until {expiry_s(self.certificate):.0f})"


class ServingCertificate:
    """``context`` serves with the newest certificate once ``ready`` is set; ``run`` keeps both so.

    ``names`` are the DNS names and IP addresses that clients connect to. ``webhooks`` are the configurations whose
    ``caBundle`` follows, by kind and name; those that cert-manager injects are left alone. With ``callers`` only who
    shows a certificate of theirs gets through TLS, and ``callers_replaced`` is called when these are others.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        secret: str,
        names: Sequence[str],
        webhooks: Sequence[tuple[Resource, str]] = (),
        settings: CertificateSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        callers: ClientAuthority | None = None,
    ) -> None:
        self._callers = callers
        self.callers_replaced: Callable[[], None] = lambda: None
        self.context = self._current = self._fresh_context()
        if callers is not None:
            # What a context trusts can only grow, and a listener keeps the one it began with. So each handshake is
            # handed over to the context of the latest files: also without a server name in it, verification and all.
            self.context.sni_callback = self._hand_over
        self.ready = asyncio.Event()
        self.rotations = 0
        self._kube, self._secret_key, self._names = kube, (namespace, secret), tuple(names)
        self._settings, self._clock = settings or CertificateSettings(), clock
        self._loaded = self._chain = b""
        self._read: Object | None = None
        self._changed = asyncio.Event()
        self._secret: Informer[Object] = Informer(
            kube, SECRETS, namespace=namespace, field_selector=f"metadata.name={secret}"
        )
        self._webhooks: list[Informer[Object]] = [
            Informer(kube, resource, field_selector=f"metadata.name={name}") for resource, name in webhooks
        ]

    @property
    def expires_s(self) -> float:
        """Unix time at which the certificate that is served expires; 0 before there is one."""
        return expiry_s(self._loaded) if self._loaded else 0.0

    async def run(self) -> None:
        """Follow the Secret, rotate when it is time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._secret, *self._webhooks):
                informer.subscribe(lambda _: self._changed.set())
                tasks.create_task(informer.run())
            if self._callers is not None:
                tasks.create_task(self._callers.run(self._follow_callers))
            # Serving needs the Secret only; the configurations' bundles follow when these have been read.
            await self._secret.synced.wait()
            for informer in self._webhooks:
                tasks.create_task(self._wait_synced(informer))
            while True:
                self._changed.clear()
                wait_s = await self._step()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()

    async def _wait_synced(self, informer: Informer[Object]) -> None:
        await informer.synced.wait()
        self._changed.set()

    async def _step(self) -> float:
        """Do what there is to do; seconds until there may be more, should nothing change before."""
        try:
            secret = _newer(self._secret.objects.get(self._secret_key), self._read)
            for _ in range(_ATTEMPTS):
                try:
                    return await self._keep(secret or await self._kube.create(SECRETS, self._fresh()))
                except Conflict:
                    # Another replica was faster. What it wrote is read at once: a watch that is slow, or silent until
                    # its read timeout, must not keep this replica from serving.
                    secret = self._read = await self._read_secret()
        except ApiError as error:
            _LOG.warning("the certificate in %s/%s cannot be kept: %s", *self._secret_key, error)
        return _RETRY_S

    async def _read_secret(self) -> Object | None:
        """As it is now. A list, as replicas have no right to get."""
        namespace, name = self._secret_key
        result = await self._kube.list(SECRETS, namespace, field_selector=f"metadata.name={name}")
        return result.items[0] if result.items else None

    async def _keep(self, secret: Object) -> float:
        data = _decode(secret)
        usable = self._load(data)
        published = not usable or await self._publish(data.get("ca.crt", b""))
        if _CERT_MANAGER in secret["metadata"].get("annotations", {}):
            return 60.0 if usable and published else _RETRY_S
        wait_s = await self._rotate(secret, data, usable)
        return wait_s if published else min(wait_s, _RETRY_S)

    async def _rotate(self, secret: Object, data: dict[str, bytes], usable: bool) -> float:
        now_s = self._clock()
        if not usable:
            # Nothing that could overlap: at once.
            await self._kube.replace(SECRETS, secret | {"data": self._fresh(data.get("ca.crt", b""))["data"]})
            return _RETRY_S
        if "next.crt" in data:
            wait_s = _next_from_s(secret) - now_s
            if wait_s > 0 or not self._published(data["ca.crt"]):
                return max(0.2, min(60.0, wait_s))
            moved = {"ca.crt": data["ca.crt"], "tls.crt": data["next.crt"], "tls.key": data["next.key"]}
            await self._kube.replace(SECRETS, secret | {"data": _encode(moved)})
            return _RETRY_S
        begin_s = expiry_s(data["tls.crt"]) - self._settings.renew_before_s
        served = _names_of(data["tls.crt"])
        if now_s < begin_s and served >= set(self._names):
            return min(3600.0, begin_s - now_s)
        # The names served now stay: during a rolling update older replicas need others than newer ones.
        await self._stage(secret, data, tuple(dict.fromkeys((*self._names, *sorted(served)))), now_s)
        return _RETRY_S

    async def _stage(self, secret: Object, data: dict[str, bytes], names: Sequence[str], now_s: float) -> None:
        pair = make_pair(names, now_s, self._settings.lifetime_s)
        bundle = _living(data["ca.crt"], now_s) + pair.authority
        staged = data | {"ca.crt": bundle, "next.crt": pair.certificate, "next.key": pair.key}
        metadata = secret["metadata"]
        annotations = metadata.get("annotations", {}) | {NEXT_FROM: f"{now_s + self._settings.overlap_s:.3f}"}
        await self._kube.replace(
            SECRETS, secret | {"data": _encode(staged), "metadata": metadata | {"annotations": annotations}}
        )
        _LOG.info("a new certificate for %s waits in %s/%s", ", ".join(names), *self._secret_key)

    def _fresh(self, authorities: bytes = b"") -> Object:
        now_s = self._clock()
        pair = make_pair(self._names, now_s, self._settings.lifetime_s)
        data = {
            "ca.crt": _living(authorities, now_s) + pair.authority,
            "tls.crt": pair.certificate,
            "tls.key": pair.key,
        }
        namespace, name = self._secret_key
        return {
            "type": "kubernetes.io/tls",
            "data": _encode(data),
            "metadata": {"namespace": namespace, "name": name, "labels": {PART_OF_LABEL: PART_OF}},
        }

    def _load(self, data: dict[str, bytes]) -> bool:
        """Serve with ``tls.*``; False where it cannot be served with, and what was served before stays."""
        certificate, key = data.get("tls.crt", b""), data.get("tls.key", b"")
        if certificate and certificate == self._loaded:
            return expiry_s(certificate) > self._clock()
        try:
            # Tried on another context first: a key that does not fit would leave this one half changed.
            chain = certificate + b"\n" + key
            for context in (fresh := self._fresh_context(), self.context):
                _load_chain(context, chain)
            living = expiry_s(certificate) > self._clock()
        except (ssl.SSLError, ValueError) as error:
            _LOG.error("the certificate in %s/%s cannot be used: %s", *self._secret_key, error)
            return False
        self.rotations += bool(self._loaded)
        self._loaded, self._chain, self._current = certificate, chain, fresh
        self.ready.set()
        return living

    def _fresh_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self._callers is not None:
            self._callers.guard(context)
        return context

    def _follow_callers(self) -> None:
        if self._chain:
            context = self._fresh_context()
            _load_chain(context, self._chain)
            self._current = context
        self.callers_replaced()

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    async def _publish(self, bundle: bytes) -> bool:
        """Write the bundle where it is missing; False if a configuration was changed at the same time."""
        if not bundle:
            return True
        text = base64.b64encode(bundle).decode()
        for informer in self._webhooks:
            for (_, name), result in list(informer.objects.items()):
                hooks = result.get("webhooks") or []
                if _INJECTED in result["metadata"].get("annotations", {}) or _all_have(hooks, text):
                    continue
                filled = [h | {"clientConfig": h.get("clientConfig", {}) | {"caBundle": text}} for h in hooks]
                version = result["metadata"]["resourceVersion"]
                changes = {"metadata": {"resourceVersion": version}, "webhooks": filled}
                try:
                    await self._kube.patch(informer.resource, name, changes)
                except Conflict:
                    return False
        return True

    def _published(self, bundle: bytes) -> bool:
        if not all(informer.synced.is_set() for informer in self._webhooks):
            return False
        text = base64.b64encode(bundle).decode()
        result = [item for informer in self._webhooks for item in informer.objects.values()]
        return all(
            _INJECTED in f["metadata"].get("annotations", {}) or _all_have(f.get("webhooks") or [], text)
            for f in result
        )


def make_pair(names: Sequence[str], now_s: float, lifetime_s: float) -> Pair:
    """A CA of its own and a serving certificate signed by it, for DNS names and IP addresses."""
    start = datetime.fromtimestamp(now_s, UTC)
    end = start + timedelta(seconds=lifetime_s)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # The serial tells one CA from the next where both are in a bundle: clients look issuers up by name.
    serial = x509.random_serial_number()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{PART_OF} {serial:x}"[:64])])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])

    def begin(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(issuer_name=issuer, subject_name=name, public_key=public)
        builder = builder.not_valid_before(start - _SKEW).not_valid_after(end)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)

    authority = (
        begin(issuer, authority_key.public_key())
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        begin(subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), plain, authority.public_bytes(pem))


def expiry_s(certificate: bytes) -> float:
    """Unix time at which a PEM certificate expires. Raises ValueError for anything else."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()


def _newer(watched: Object | None, read: Object | None) -> Object | None:
    """The later of what the watch brought and what was read past it; nothing where the watch saw it deleted."""
    if watched is None or read is None or watched["metadata"]["uid"] != read["metadata"]["uid"]:
        return watched
    newer = is_newer(read["metadata"]["resourceVersion"], than=watched["metadata"]["resourceVersion"])
    return read if newer else watched


def _next_from_s(secret: Object) -> float:
    try:
        return float(secret["metadata"].get("annotations", {})[NEXT_FROM])
    except (KeyError, ValueError):
        return 0.0


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: bytes) -> set[str]:
    parsed = x509.load_pem_x509_certificate(certificate)
    try:
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _living(bundle: bytes, now_s: float) -> bytes:
    """The certificates of a bundle that are still valid; nothing of what cannot be read."""
    try:
        result = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except ValueError:
        return b""
    living = [item for item in result if item.not_valid_after_utc.timestamp() > now_s]
    return b"".join(item.public_bytes(serialization.Encoding.PEM) for item in living)


def _load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate and key from memory: ``ssl`` reads files only, and a key should not touch a disk."""
    handle = os.memfd_create("certificate")
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{handle}")


def _all_have(hooks: Sequence[Object], bundle: str) -> bool:
    return all(hook.get("clientConfig", {}).get("caBundle") == bundle for hook in hooks)


def _encode(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in data.items()}


def _decode(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in (secret.get("data") or {}).items()}
