"""The run-time predictor at the endpoint."""

from kopt.serving.base.database.opening import location
from kopt.serving.base.service import Assembly, ServiceSpec
from kopt.serving.contract.runtime_answers import RunTimeResponse
from kopt.serving.contract.runtime_schemas import RunsRequest, RunTimeRequestIn, RunTimesRequest, StartsRequest
from kopt.serving.measured.comparisons import Comparisons
from kopt.serving.measured.table import ComparisonTable
from kopt.serving.runtime.routes import routes
from kopt.serving.runtime.service import STARTS, RunTimeService, challenger_slot, runtime_slot
from kopt.serving.runtime.starts import StartTable
from kopt.serving.runtime.stored import RunFeatures, open_run_store
from kopt.serving.runtime.table import RunTable


def assemble(assembly: Assembly) -> RunTimeService:
    settings = assembly.settings
    comparisons = ComparisonTable(location(settings, "comparisons"), "runtime")
    return RunTimeService(
        runtime_slot(assembly.promoted, assembly.parts.shipped.get("runtime")),
        assembly.metrics,
        RunTable(location(settings, "runs")),
        StartTable(location(settings, "starts")),
        challenger=challenger_slot(assembly.source),
        comparisons=Comparisons(comparisons, "runtime", assembly.metrics),
        start_comparisons=Comparisons(
            ComparisonTable(location(settings, "comparisons"), STARTS), STARTS, assembly.metrics
        ),
        features=_features(assembly),
    )


def _features(assembly: Assembly) -> RunFeatures | None:
    """None where the store of demand is replaced, and that of runs is not."""
    source = assembly.parts.run_features
    if isinstance(source, RunFeatures):
        return source
    return None if assembly.parts.features is not None else RunFeatures(open_run_store(assembly.settings))


SERVICE = ServiceSpec(
    "runtime",
    RunTimeService,
    assemble,
    routes,
    "This endpoint answers no questions about run times.",
    (RunTimeRequestIn, RunTimesRequest, RunsRequest, StartsRequest),
    RunTimeResponse,
)
