"""The sizing predictor at the endpoint."""

from kopt.serving.base.database.opening import location
from kopt.serving.base.service import Assembly, ServiceSpec
from kopt.serving.contract.schemas import SizingRequest
from kopt.serving.measured.comparisons import Comparisons
from kopt.serving.measured.table import ComparisonTable
from kopt.serving.sizing.routes import routes
from kopt.serving.sizing.service import SizingService, challenger_slot, sizing_slot
from kopt.serving.sizing.step_times import StepTimes
from kopt.serving.sizing.table import SizeTable


def assemble(assembly: Assembly) -> SizingService:
    slot = sizing_slot(assembly.promoted, assembly.parts.shipped.get("sizing"))
    return SizingService(
        slot,
        assembly.metrics,
        table=SizeTable(location(assembly.settings, "sizing")),
        step_times=StepTimes(location(assembly.settings, "step_times")),
        challenger=challenger_slot(assembly.source),
        comparisons=Comparisons(
            ComparisonTable(location(assembly.settings, "comparisons"), "sizing"), "sizing", assembly.metrics
        ),
    )


SERVICE = ServiceSpec(
    "sizing",
    SizingService,
    assemble,
    routes,
    "This endpoint answers no sizing questions.",
    (SizingRequest,),
)
