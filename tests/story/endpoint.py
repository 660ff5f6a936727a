"""One replica of the endpoint, with the shipped models: endpoint.py HOME PORT.

What it keeps lies where KOPT_DATABASE_URL and KOPT_REDIS_URL say, as in a cluster.
"""

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from shipped_models import shipped_endpoint

from kopt.core.settings import Settings


def main() -> None:
    home, port = Path(sys.argv[1]), int(sys.argv[2])
    with shipped_endpoint(home, Settings.parse(os.environ, home=home), port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
