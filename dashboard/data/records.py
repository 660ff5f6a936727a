"""What others have recorded, and pages show."""

from dataclasses import dataclass

from kopt.dashboard.data.alerts import AlertSource
from kopt.dashboard.data.costs import Costs
from kopt.dashboard.data.gpu_hours import GpuHourSource
from kopt.dashboard.data.utilisation import UtilisationSource


@dataclass(frozen=True)
class Records:
    """``costs`` is what the meter has recorded, ``gpu_hours`` what GPUs were used for, ``utilisation`` how busy they
    were over months, ``alerts`` what fired. None where these pages have none of a kind."""

    costs: Costs | None = None
    gpu_hours: GpuHourSource | None = None
    utilisation: UtilisationSource | None = None
    alerts: AlertSource | None = None


NO_RECORDS = Records()
