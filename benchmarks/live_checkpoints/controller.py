"""The pre-emption controller for trainers that save every minute: controller.py KUBECONFIG PORT BUDGET.

Real ones save every half an hour: what guards a write that may come soon is shorter by as much, a gang may go again a
minute after it has come back, and waiting is so dear that whoever can be stopped is, at whatever moment.
"""

import asyncio
import sys
from pathlib import Path

from kopt.controllers.preemption.main import ProcessSettings, serve
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.core.decision import Mode
from kopt.policies.preemption import PreemptionSettings

MANY = 1_000_000
POLICY = PreemptionSettings(
    stale_s=75.0,
    search_steps=2_000,
    write_guard_s=4.0,
    act_s=2.0,
    unpaced_s=60.0,
    wait_price=100.0,
    usual_s=60.0,
    recheck_s=1.0,
    restart_s=10.0,
    hold_s=5.0,
    settle_s=30.0,
    resumed_s=60.0,
    most_per_gang=MANY,
    most_per_hour=MANY,
)


def main() -> None:
    kubeconfig, port, budget = sys.argv[1:]
    controller = ControllerSettings(Mode.ENFORCE, budget_s=float(budget), policy=POLICY)
    settings = ProcessSettings(controller=controller, plain_pods=True, kubeconfig=Path(kubeconfig), port=int(port))
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
