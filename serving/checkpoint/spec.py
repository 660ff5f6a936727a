"""The checkpoint predictor at the endpoint."""

from kopt.serving.checkpoint.routes import routes
from kopt.serving.checkpoint.service import CheckpointService, checkpoint_slot
from kopt.serving.checkpoint.table import JobTable
from kopt.serving.contract.checkpoint_schemas import CheckpointRequest
from kopt.serving.runtime.database.opening import location
from kopt.serving.runtime.service import Assembly, ServiceSpec


def assemble(assembly: Assembly) -> CheckpointService:
    slot = checkpoint_slot(assembly.promoted, assembly.parts.shipped.get("checkpoint"))
    return CheckpointService(slot, assembly.metrics, JobTable(location(assembly.settings, "checkpoint")))


SERVICE = ServiceSpec(
    "checkpoint",
    CheckpointService,
    assemble,
    routes,
    "This endpoint follows no jobs.",
    (CheckpointRequest,),
)
