"""Writes the alert rules into the chart: Helm cannot run what knows them. A test holds the file to the catalogue."""

import json
from pathlib import Path

from kopt.core.alerts.catalogue import rule_groups

PATH = Path(__file__).resolve().parents[1] / "deploy" / "chart" / "files" / "alerts.json"


def text() -> str:
    """The content of the file."""
    return json.dumps({"groups": rule_groups()}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
