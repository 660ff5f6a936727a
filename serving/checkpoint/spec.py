"""The checkpoint predictor at the endpoint."""

from kopt.serving.base.database.opening import location
from kopt.serving.base.service import Assembly, ServiceSpec
from kopt.serving.checkpoint.ends import ReadEnds
from kopt.serving.checkpoint.recording import RecordingTable
from kopt.serving.checkpoint.routes import routes
from kopt.serving.checkpoint.service import CheckpointService, challenger_slot, checkpoint_slot
from kopt.serving.checkpoint.table import JobTable
from kopt.serving.contract.checkpoint_schemas import CheckpointRequest
from kopt.serving.measured.comparisons import Comparisons
from kopt.serving.measured.table import ComparisonTable


def assemble(assembly: Assembly) -> CheckpointService:
    slot = checkpoint_slot(assembly.promoted, assembly.parts.shipped.get("checkpoint"))
    settings = assembly.settings
    recording = RecordingTable.of_mib(location(settings, "recordings"), settings.record_logs_mib)
    table = JobTable(location(settings, "checkpoint"))
    challenger = challenger_slot(assembly.source)
    ends = ReadEnds(Comparisons(ComparisonTable(location(settings, "comparisons"), "checkpoint"), "checkpoint"))
    return CheckpointService(slot, assembly.metrics, table, challenger=challenger, recording=recording, ends=ends)


SERVICE = ServiceSpec(
    "checkpoint",
    CheckpointService,
    assemble,
    routes,
    "This endpoint follows no jobs.",
    (CheckpointRequest,),
)
