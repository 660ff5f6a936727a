"""The demand predictor at the endpoint: champion, challenger, and the comparison of both with what came."""

from kopt.features.live import open_histories
from kopt.models.demand.predictor import DemandPredictor
from kopt.models.registry.aliases import CHALLENGER, SHIPPED
from kopt.models.registry.loading import load_as
from kopt.serving.base.database.opening import location
from kopt.serving.base.model_slot import ModelSlot
from kopt.serving.base.service import Assembly, ServiceSpec
from kopt.serving.contract.demand_answers import DemandForecast
from kopt.serving.contract.schemas import DemandRequest, PushRequest
from kopt.serving.demand.anomalies import DemandAnomalies
from kopt.serving.demand.feature_lookup import StoredFeatures, open_feature_store
from kopt.serving.demand.inference_protocol import InferRequest
from kopt.serving.demand.lending_advice import STALE_S, Adviser
from kopt.serving.demand.live import LiveDemand
from kopt.serving.demand.monitoring import PredictionTable
from kopt.serving.demand.observer import TableObserver
from kopt.serving.demand.routes import routes
from kopt.serving.demand.service import DemandService


def assemble(assembly: Assembly) -> DemandService:
    settings, metrics = assembly.settings, assembly.metrics
    table = PredictionTable(location(settings, "monitoring"))
    champion = ModelSlot(assembly.promoted, default=assembly.parts.shipped.get("demand") or _shipped)
    challenger = ModelSlot(assembly.source, alias=CHALLENGER)
    source = assembly.parts.features
    features = source if isinstance(source, StoredFeatures) else StoredFeatures(open_feature_store(settings))
    anomalies = DemandAnomalies(metrics.registry, false_alarms_per_week=settings.anomaly_false_alarms)
    return DemandService(
        champion,
        metrics,
        features=features,
        live=LiveDemand(lambda: open_histories(settings), features.materialise, observe=anomalies.observe),
        anomalies=anomalies,
        observer=TableObserver(table, metrics, champion=champion, challenger=challenger, adviser=Adviser(table)),
        challenger=challenger,
        table=table,
        advice_age_s=STALE_S,
    )


def _shipped() -> DemandPredictor:
    return load_as(DemandPredictor, "demand", SHIPPED)


SERVICE = ServiceSpec(
    "demand",
    DemandService,
    assemble,
    routes,
    "This endpoint forecasts no demand.",
    (DemandRequest, InferRequest, PushRequest),
    DemandForecast,
)
