"""The default model: only from licensed series, the same each time, altered ones refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from kopt.data.demand.catalogue import SeriesInfo, read_catalogue
from kopt.data.demand.generator import generate
from kopt.models.registry import shipped
from kopt.models.registry.artifact import ArtefactError
from kopt.training.default_models import fit_default
from kopt.training.demand.default_data import licensed
from kopt.training.demand.sources import DemandDataset, dataset
from kopt.training.pipeline.default_data import licence_of

QUICK = {"rounds": 5, "network_epochs": 1, "rows_per_series": 300}


def _data(licences: tuple[str, ...]) -> DemandDataset:
    series = generate(len(licences), 3.0, seed=1)
    info = {one.name: SeriesInfo(one.name, 300, source=f"s{i}", licence=licences[i]) for i, one in enumerate(series)}
    return dataset("test", series, info)


@pytest.mark.parametrize(
    ("stated", "licence"),
    [
        ("Apache-2.0", "Apache-2.0"),
        ("MIT", "MIT"),
        ("Apache-2.0 (repo)", "Apache-2.0"),
        ("CC-BY-4.0", "CC-BY-4.0"),
        ("none stated", None),
        ("MIT? see NAB LICENSE.txt", None),
        ("see NAB LICENSE.txt", None),
        ("", None),
        ("none stated (README asks citation)", None),
        ("CC-BY-NC-4.0", None),
    ],
)
def test_only_licences_stated_beyond_doubt_count(stated: str, licence: str | None) -> None:
    assert licence_of(stated) == licence


def test_series_without_a_licence_or_of_allocated_gpus_are_left_out() -> None:
    data = _data(("MIT", "none stated", "Apache-2.0"))
    kinds = {
        name: SeriesInfo(name, 300, licence=i.licence, kind="gpu" if i.licence == "Apache-2.0" else "llm")
        for name, i in data.info.items()
    }
    kept = licensed(DemandDataset("x", data.series, kinds))
    assert len(kept.series) == 1
    assert set(kept.excluded.values()) == {"licence 'none stated'", "kind gpu"}


def test_the_real_series_used_are_the_licensed_ones(demand_data_dir: Path) -> None:
    info = read_catalogue(demand_data_dir)
    allowed = {name for name, one in info.items() if licence_of(one.licence) and one.kind != "gpu"}
    assert {name.split("_")[0] for name in allowed} == {"azure2023", "mooncake", "mscloud", "servegen"}
    assert len(allowed) == 28


@pytest.mark.slow
def test_the_same_data_give_the_same_digest_and_an_altered_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = licensed(_data(("MIT", "Apache-2.0", "none stated")))
    made = [fit_default(data, tmp_path / f"m{i}", tmp_path / "digests.json", parameters=QUICK) for i in range(2)]
    assert made[0].digest == made[1].digest
    assert json.loads((tmp_path / "digests.json").read_text()) == {"demand": made[0].digest}
    sources = json.loads((tmp_path / "m0" / "SOURCES.json").read_text())
    assert [one["licence"] for one in sources["used"]] == ["MIT", "Apache-2.0"]
    written = b"".join(p.read_bytes() for p in (tmp_path / "m0").rglob("*") if p.is_file())
    assert np.asarray(data.series[0].value, "<f8").tobytes()[:64] not in written

    monkeypatch.setattr(shipped, "DIGESTS_FILE", tmp_path / "digests.json")
    monkeypatch.setattr(shipped, "shipped_folder", lambda _: tmp_path / "m0")
    assert shipped.load_shipped("demand").name == "demand"
    (tmp_path / "m0" / "demand.json").write_text("{}")
    with pytest.raises(ArtefactError, match="altered"):
        shipped.load_shipped("demand")


def test_no_usable_series_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="licence"):
        fit_default(licensed(_data(("none stated",))), tmp_path / "m", tmp_path / "d.json")
