"""The bandwidth predictor at the endpoint, with the measured pairs of nodes that calibrate it."""

from kopt.serving.bandwidth.routes import routes
from kopt.serving.bandwidth.service import BandwidthService, bandwidth_slot, challenger_slot
from kopt.serving.base.database.opening import location
from kopt.serving.base.service import Assembly, ServiceSpec
from kopt.serving.contract.bandwidth.answers import BandwidthResponse
from kopt.serving.contract.bandwidth.pairwise_schemas import PairsRequest
from kopt.serving.contract.bandwidth.schemas import BandwidthRequest
from kopt.serving.measured.comparisons import Comparisons
from kopt.serving.measured.table import ComparisonTable
from kopt.serving.pairwise.service import PairwiseService
from kopt.serving.pairwise.table import PairTable


def assemble(assembly: Assembly) -> BandwidthService:
    slot = bandwidth_slot(assembly.promoted, assembly.parts.shipped.get("bandwidth"))
    table = ComparisonTable(location(assembly.settings, "comparisons"), "bandwidth")
    return BandwidthService(
        slot,
        assembly.metrics,
        pairwise=PairwiseService(PairTable(location(assembly.settings, "bandwidth"))),
        challenger=challenger_slot(assembly.source),
        comparisons=Comparisons(table, "bandwidth", assembly.metrics),
    )


SERVICE = ServiceSpec(
    "bandwidth",
    BandwidthService,
    assemble,
    routes,
    "This endpoint answers no questions about bandwidth.",
    (BandwidthRequest, PairsRequest),
    BandwidthResponse,
)
