"""Puts an endpoint together from settings: registry, metrics and the service of every predictor."""

from kopt.core.settings import Settings
from kopt.models.predictors import predictor_names
from kopt.models.registry.registry import RegisteredModel, Registry
from kopt.serving.audit.service import AuditService
from kopt.serving.audit.table import AuditTable
from kopt.serving.base.database.opening import location
from kopt.serving.base.promoted import Promoted
from kopt.serving.base.service import Assembly, Parts
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.services import SERVICES
from kopt.serving.http.auth import reviewer_from
from kopt.serving.http.hosts import names_of
from kopt.serving.http.metrics import EndpointMetrics

__all__ = ["Parts", "assemble"]


def assemble(settings: Settings, parts: Parts | None = None) -> Endpoint:
    """An endpoint that has not started yet; what it keeps lies under ``settings.state``."""
    parts = parts or Parts()
    registry = Registry(settings)
    source = parts.source or registry
    assembly = Assembly(settings, source, parts.source or Promoted(registry), EndpointMetrics(), parts)

    def versions() -> tuple[RegisteredModel, ...]:
        return tuple(model for name in predictor_names() for model in source.list(name))

    return Endpoint(
        {spec.name: spec.assemble(assembly) for spec in SERVICES},
        assembly.metrics,
        versions,
        parts.refresh_s,
        parts.most_at_once,
        parts.reviewer or reviewer_from(settings),
        names_of(settings),
        AuditService(AuditTable(location(settings, "audit"))),
    )
