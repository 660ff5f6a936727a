"""``kopt crds`` without the chart at hand has the definitions of the chart."""

import runpy

from chart import CHART, ROOT

from kopt.cluster.objects.definitions import packaged_definitions


def test_the_package_holds_the_definitions_of_the_chart() -> None:
    module = runpy.run_path(str(ROOT / "scripts" / "packaged_definitions.py"))
    assert module["PATH"].read_text(encoding="utf-8") == module["text"](), "run: scripts/packaged_definitions.py"
    assert len(packaged_definitions()) == len(list((CHART / "crds").glob("*.yaml")))
