"""Puts an endpoint together from settings: registry, models, table of predictions, observer."""

from collections.abc import Callable
from dataclasses import dataclass

from kopt.core.settings import Settings
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.catalogue import PREDICTORS
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.registry import RegisteredModel, Registry
from kopt.models.sizing.predictor import SizingPredictor
from kopt.serving.advice import Adviser
from kopt.serving.app import MOST_AT_ONCE, REFRESH_S, Endpoint
from kopt.serving.bandwidth import BandwidthService, bandwidth_slot
from kopt.serving.bandwidth_pairs import PairsService
from kopt.serving.bandwidth_pairs_table import PairTable
from kopt.serving.checkpoint import CheckpointService, checkpoint_slot
from kopt.serving.checkpoint_table import JobTable
from kopt.serving.engine import DemandService
from kopt.serving.identity import Reviewer, reviewer_from
from kopt.serving.metrics import EndpointMetrics
from kopt.serving.monitoring import PredictionTable
from kopt.serving.observer import TableObserver
from kopt.serving.sizes import SizeTable
from kopt.serving.sizing import SizingService, sizing_slot
from kopt.serving.slot import ModelSlot, ModelSource
from kopt.serving.stored import StoredFeatures, open_feature_store


@dataclass(frozen=True)
class Parts:
    """What tests and embedders replace; the defaults are the registry and stores that the settings name."""

    source: ModelSource | None = None
    features: StoredFeatures | None = None
    refresh_s: float = REFRESH_S
    most_at_once: int = MOST_AT_ONCE
    reviewer: Reviewer | None = None
    shipped_sizing: Callable[[], SizingPredictor] | None = None
    """Loads what answers while the registry has no sizing champion."""
    shipped_checkpoint: Callable[[], CheckpointPredictor] | None = None
    """The same for the checkpoint predictor."""
    shipped_bandwidth: Callable[[], BandwidthPredictor] | None = None
    """And for the bandwidth predictor."""


def assemble(settings: Settings, parts: Parts | None = None) -> Endpoint:
    """An endpoint that has not started yet; state lies under ``settings.home``."""
    parts = parts or Parts()
    source = parts.source or Registry(settings)
    table = PredictionTable(settings.home / "monitoring.db")
    metrics = EndpointMetrics(table)
    champion = ModelSlot(source)
    challenger = ModelSlot(source, alias="challenger")
    observer = TableObserver(table, metrics, challenger=challenger, adviser=Adviser(table))
    features = parts.features or StoredFeatures(open_feature_store(settings))
    service = DemandService(champion, metrics, features=features, observer=observer)

    def versions() -> tuple[RegisteredModel, ...]:
        return tuple(model for name in PREDICTORS for model in source.list(name))

    return Endpoint(
        service,
        metrics,
        champion,
        challenger,
        table,
        observer,
        versions,
        parts.refresh_s,
        parts.most_at_once,
        parts.reviewer or reviewer_from(settings),
        SizingService(sizing_slot(source, parts.shipped_sizing), metrics, table=SizeTable(settings.home / "sizing.db")),
        CheckpointService(
            checkpoint_slot(source, parts.shipped_checkpoint), metrics, JobTable(settings.home / "checkpoint.db")
        ),
        BandwidthService(
            bandwidth_slot(source, parts.shipped_bandwidth),
            metrics,
            pairs=PairsService(PairTable(settings.home / "bandwidth.db")),
        ),
    )
