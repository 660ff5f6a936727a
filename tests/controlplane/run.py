"""Starts the control plane outside pytest, prints how to reach it, and runs until it is interrupted.

python -P tests/controlplane/run.py [--nodes 4] [--gpus 8] [--local] [--kueue] [--kai]
"""

import argparse
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controlplane.kai import Kai
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane


def main() -> None:
    """Serves until Ctrl-C or SIGTERM; the folder and everything in it are gone afterwards."""
    parser = argparse.ArgumentParser(description="A control plane of processes on loopback, for trying things out.")
    parser.add_argument("--nodes", type=int, default=0, help="simulated GPU nodes")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each simulated node")
    parser.add_argument("--resource", default="nvidia.com/gpu", help="their resource")
    parser.add_argument("--local", action="store_true", help="a node whose pods are local processes")
    parser.add_argument("--kueue", action="store_true")
    parser.add_argument("--kai", action="store_true")
    chosen = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with tempfile.TemporaryDirectory(prefix="control-plane-") as folder, ExitStack() as running:
        plane = ControlPlane(Path(folder))
        running.callback(plane.stop)
        if chosen.nodes:
            kwok = Kwok(plane)
            running.callback(kwok.stop)
            kwok.nodes(chosen.nodes, chosen.gpus, chosen.resource)
        if chosen.local:
            running.enter_context(Kubelet(plane))
        for wanted, start in ((chosen.kueue, Kueue), (chosen.kai, Kai)):
            if wanted:
                running.callback(start(plane).stop)
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)  # noqa: T201
        over.wait()


if __name__ == "__main__":
    main()
