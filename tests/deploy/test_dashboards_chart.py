"""The chart's dashboards: ConfigMaps that the sidecar of a Grafana collects."""

from typing import Any

from kopt.core.dashboards.catalogue import dashboards, document


def rendered(charts: Any, **values: Any) -> list[dict[str, Any]]:
    objects = charts.render({"monitoring": {"dashboards": values}})
    return [item for item in objects if item["metadata"]["name"].startswith("kopt-dashboard-")]


def test_the_chart_ships_them_for_a_sidecar(charts: Any) -> None:
    assert rendered(charts) == []
    maps = rendered(charts, enabled=True, annotations={"grafana_folder": "kopt"})
    content = {name: text for item in maps for name, text in item["data"].items()}
    assert content == {f"kopt-{each.name}.json": document(each.name) for each in dashboards()}
    for item in maps:
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "kopt"}
