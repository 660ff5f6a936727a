"""A pod of the story's service: serve.py ADDRESS:PORT TARGETS NAMESPACE SERVICE.

TARGETS is the folder in which Prometheus looks for what to scrape (file_sd); the server's own entry goes with it.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from inference_server import inference_server


def main() -> None:
    address, folder, namespace, service = sys.argv[1:]
    host, _, port = address.rpartition(":")
    server = inference_server(host, int(port))
    target = Path(folder) / f"{os.environ['POD_NAME']}.json"
    new = target.with_suffix(".new")
    labels = {"namespace": namespace, "service": service, "pod": os.environ["POD_NAME"]}
    new.write_text(json.dumps([{"targets": [address], "labels": labels}]))
    new.rename(target)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.serve_forever()
    finally:
        target.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
