"""Writes the chart's custom resource definitions into the package, for `kopt crds` without the chart. A test holds the
file to the chart."""

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "chart" / "crds"
PATH = ROOT / "cluster" / "objects" / "definitions.json"


def text() -> str:
    """The content of the file: a definition in each line."""
    found = [document for path in sorted(CHART.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())]
    lines = [json.dumps(document, ensure_ascii=False, separators=(",", ":")) for document in found]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
