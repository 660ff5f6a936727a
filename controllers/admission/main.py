"""``kopt webhook``: one replica of the admission webhooks, from start to the end of its draining."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kopt.cluster.admission.address import Address
from kopt.cluster.client.api import ApiError, Kube, connect
from kopt.cluster.client.client_authority import ClientAuthority
from kopt.cluster.client.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from kopt.cluster.runtime.events import EventRecorder
from kopt.cluster.runtime.fall_back import AlarmSource, FallBack, answers_of
from kopt.cluster.runtime.http.certificates import CertificateSettings, ServingCertificate
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.signals import end_signals, run_until, settle_memory
from kopt.controllers.admission.audit import AuditWatch
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.metrics import WebhookMetrics
from kopt.controllers.admission.policy import ConformancePolicy
from kopt.controllers.admission.registration import CONFIGURATION_NAME, register
from kopt.controllers.admission.server import ServerSettings, WebhookServer
from kopt.controllers.admission.shares.claims import ShareClaims
from kopt.controllers.admission.sizes.cache import Ask, SizingCache
from kopt.controllers.admission.state import LiveState
from kopt.controllers.devices.admission import DevicesAtAdmission
from kopt.controllers.sizing.admission import SizingAtAdmission
from kopt.controllers.staging.admission import StagingAtAdmission

_LOG = logging.getLogger(__name__)
SECRET = "kopt-webhook-tls"
_RETRY_S = 5.0
_SIZING_DEADLINE_S = 5.0
"""In the background; a pod waits for its budget only."""


@dataclass(frozen=True)
class WebhookSettings:
    """``address`` is where the API server finds this replica and the others; ``names`` is what it connects to."""

    address: Address
    names: tuple[str, ...]
    server: ServerSettings = ServerSettings()
    certificates: CertificateSettings = field(default_factory=CertificateSettings)
    kubeconfig: Path | None = None
    registers: bool = True
    """Writes the webhook configurations itself; False where the installation does."""
    sizing_url: str = ""
    """The prediction endpoint to fill the sizing cache from; empty for none."""
    client_ca: Path | None = None
    """CA of those who may call, the API server's client certificate; None: anyone who reaches the port."""
    audits: bool = True
    """Counts the GPUs of workloads that bypass the queues (``kopt_rogue_gpus``)."""


async def serve(settings: WebhookSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``. Raises NoCluster when no cluster is configured."""
    ending = end_signals(stop)
    async with connect(settings.kubeconfig) as kube, sizing_source(settings.sizing_url) as (ask, alarms):
        await run_until(ending, _Replica(kube, settings, ask, alarms))


@contextlib.asynccontextmanager
async def sizing_source(url: str) -> AsyncIterator[tuple[Ask | None, Sequence[AlarmSource]]]:
    """What asks the endpoint at ``url``, with the token of this process where it has one, and the alarms about its
    answers; None and no alarms without a url."""
    if not url:
        yield None, ()
        return
    from kopt.serving.client.alarms import drift_of
    from kopt.serving.client.client import AsyncPredictionClient

    async with AsyncPredictionClient(url, deadline_s=_SIZING_DEADLINE_S) as client:
        yield client.sizing, (drift_of(client, "sizing"), answers_of(client))


class _Replica:
    def __init__(
        self, kube: Kube, settings: WebhookSettings, ask: Ask | None, alarms: Sequence[AlarmSource] = ()
    ) -> None:
        self._kube, self._settings = kube, settings
        self._changed = asyncio.Event()
        self._metrics = WebhookMetrics()
        isolation = Isolation("webhook", self._warn)
        self._cluster = LiveState(kube, changed=self._policy_changed, isolation=isolation)
        self._audit = AuditWatch(kube, self._cluster) if settings.audits else None
        self._sizes = SizingCache(ask)
        names = [(MUTATING_WEBHOOKS, CONFIGURATION_NAME), (VALIDATING_WEBHOOKS, CONFIGURATION_NAME)]
        self._certificate = ServingCertificate(
            kube,
            settings.address.namespace,
            SECRET,
            settings.names,
            names,
            settings.certificates,
            callers=None if settings.client_ca is None else ClientAuthority(settings.client_ca),
        )
        self._metrics.certificate_expires.set_function(lambda: self._certificate.expires_s)
        switches = self._cluster.switches
        switches.register(self._metrics.registry)
        self._fall_back = FallBack(kube, switches, "sizing", alarms)
        self._dry_runs = SizingAtAdmission(kube, settings.address.namespace, isolation=isolation, gate=switches)
        self._staging = StagingAtAdmission(kube, settings.address.namespace, gate=switches)
        self._devices = DevicesAtAdmission(kube, isolation, switches)
        self._events = EventRecorder(kube, "kaiwo.ai/webhook", socket.gethostname())
        self._share_claims = ShareClaims(kube, self._events)
        admissions = Admissions(
            self._cluster,
            self._sizes,
            self._cluster,
            self._dry_runs,
            self._staging,
            self._devices,
            self._cluster.teams,
            self._share_claims,
        )
        self._server = WebhookServer(
            admissions, self._certificate.context, settings.server, self._metrics, ready=lambda: self._cluster.ready
        )
        self._certificate.callers_replaced = self._server.end_connections
        if self._audit is not None:
            self._metrics.registry.register(self._audit)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self._server.start_probes()
            group.create_task(self._cluster.run())
            group.create_task(self._certificate.run())
            group.create_task(self._fall_back.run())
            group.create_task(self._dry_runs.run())
            group.create_task(self._staging.run())
            group.create_task(self._devices.run())
            group.create_task(self._share_claims.run())
            group.create_task(self._events.run())
            await self._certificate.ready.wait()
            await self._server.start()
            _LOG.info("serving on port %d, probes on %d", self._server.port, self._server.probe_port)
            await self._cluster.wait_ready()
            # Not before: reading every workload of a cluster would hold up what pods wait for.
            if self._audit is not None:
                group.create_task(self._audit.run())
            settle_memory()
            if self._settings.registers:
                await self._keep_registered()

    def _policy_changed(self, policy: ConformancePolicy) -> None:
        queues = policy.queues
        _LOG.info(
            "policy: mode %s, framework %s, %d rules, default queue %r",
            policy.mode,
            queues.framework,
            len(queues.groups) + len(queues.priority_classes),
            queues.default,
        )
        self._metrics.policy_generation.set(policy.generation)
        self._changed.set()
        if self._audit is not None:
            self._audit.policy_changed()

    def _warn(self, subject: Subject, reason: str, _sentence: str) -> None:
        # Informers of a webhook may read more than it may write events about: the log has the sentence. Whoever submits
        # an object whose review fails is warned in the answer.
        self._metrics.object_errors.labels("webhook", subject.kind, reason).inc()

    async def stop(self) -> None:
        await self._server.stop()
        await self._sizes.close()

    async def _keep_registered(self) -> None:
        """The configurations follow the policy; only the first time are they created."""
        create = True
        while True:
            self._changed.clear()
            try:
                await register(self._kube, self._settings.address, self._cluster.policy, create=create)
                create = False
                await self._changed.wait()
            except ApiError as error:
                _LOG.warning("the webhook configurations cannot be written: %s", error)
                await asyncio.sleep(_RETRY_S)
