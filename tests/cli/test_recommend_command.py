"""``kopt recommend`` against a running endpoint: what ran here is remembered there and told in every format."""

import copy
import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kopt.cli.main import app
from kopt.models.sizing import estimate as sizing
from kopt.serving.client.blocking import PredictionClient
from kopt.tracing.trace import Traced
from tests.admission.patching import patched
from tests.cli.endpoints import shipped_endpoint
from tests.parallelism.test_useful_count import manifest, read

JOB = {
    "kind": "Job",
    "metadata": {"name": "finetune"},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "registry/train:1",
                        "command": ["python", "train.py", "--token=hidden"],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    },
                ]
            }
        }
    },
}


@pytest.fixture
def calls(made_up_traces: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """An endpoint at KOPT_URL, and made-up traces."""
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    with shipped_endpoint(tmp_path / "endpoint") as url:
        monkeypatch.setenv("KOPT_URL", url)
        yield made_up_traces


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["recommend", *words])


def test_a_manifest_that_ran_here_is_recommended_from_then_on(calls: list[Any]) -> None:
    done = _run("job.json", "--gpu", "h100", "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert calls[0][1].name.startswith("H100")
    (told,) = json.loads(done.stdout)["recommendations"]
    assert (told["name"], told["method"], told["asked_milli_gpu"]) == ("finetune", "abstract", 1000)
    assert told["saved_milli_gpu"] == 1000 - told["milli_gpu"]
    (listed,) = json.loads(_run("-o", "json").stdout)["recommendations"]
    assert listed == told
    assert "hidden" not in json.dumps(listed)


def test_the_patch_merges_into_the_pod_template(calls: list[Any]) -> None:
    done = _run("job.json", "-o", "patch")
    (patch,) = yaml.safe_load_all(done.stdout)
    assert int(patch["metadata"]["annotations"]["kaiwo.ai/gpu-memory"]) > 0
    assert done.stdout.startswith("# finetune: ")


def test_every_format_tells_the_same(calls: list[Any]) -> None:
    assert _run("train.py", "--batch-size", "8").exit_code == 0
    assert calls[0][0].arguments == ("train.py", "--batch-size", "8")
    (row,) = csv.DictReader(io.StringIO(_run("-o", "csv").stdout))
    document = yaml.safe_load(_run("-o", "yaml").stdout)["recommendations"][0]
    assert int(row["high_bytes"]) == document["high_bytes"]
    assert "train.py" in _run().stdout


def test_what_cannot_be_run_has_no_patch_and_says_so(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: Traced(None, "no module named wonders"))
    done = _run("job.json", "-o", "patch")
    assert done.exit_code == 0, done.stderr
    assert list(yaml.safe_load_all(done.stdout)) == []
    assert "no patch" in done.stdout


def _asked(workload: Any) -> Any:
    """What the endpoint answers to a question as the admission webhook asks it."""
    with PredictionClient(os.environ["KOPT_URL"], deadline_s=30.0) as client:
        return client.sizing({"workload": workload, "profile": None, "gpu": None})


def test_a_published_estimate_is_what_the_webhook_is_told_and_the_page_shows(calls: list[Any]) -> None:
    template = JOB["spec"]["template"]  # type: ignore[index]
    assert _asked(template)["method"] == "abstract"
    assert _asked(template)["memory"]["peak_bytes"] is None, "nothing is known yet"
    done = CliRunner().invoke(app, ["estimate", "job.json", "--publish", "-o", "json"])
    assert done.exit_code == 0, done.stderr
    assert "published as finetune" in done.stderr
    made, told = json.loads(done.stdout), _asked(template)
    assert made["memory"] == told["memory"]
    assert "KNOWN_TRACE" in {one["code"] for one in told["reasons"]}
    (listed,) = [one for one in json.loads(_run("-o", "json").stdout)["recommendations"] if one["name"] == "finetune"]
    assert listed["peak_bytes"] == made["memory"]["peak_bytes"]


def test_a_published_manifest_is_about_the_gpu_that_it_selects(calls: list[Any], tmp_path: Path) -> None:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}  # type: ignore[index]
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = CliRunner().invoke(app, ["estimate", "job.json", "--publish", "-o", "json"])
    assert calls[0][1].name.startswith("H100")
    told = _asked(job["spec"]["template"])  # type: ignore[index]
    assert told["memory"] == json.loads(done.stdout)["memory"]


def test_a_launched_script_is_published_by_its_text(calls: list[Any], tmp_path: Path) -> None:
    line = "torchrun --nproc-per-node 2 train.py --size 3"
    assert CliRunner().invoke(app, ["estimate", line, "--publish"]).exit_code == 0
    script = {"script": "pass", "arguments": ["--size", "3"], "name": "train.py"}
    with PredictionClient(os.environ["KOPT_URL"], deadline_s=30.0) as client:
        told = client.sizing({"workload": script, "world_size": 2})
        other = client.sizing({"workload": script | {"script": "pass  # other"}, "world_size": 2})
    assert told["memory"]["peak_bytes"] > 0
    assert other["memory"]["peak_bytes"] is None


def test_an_estimate_is_shown_although_it_cannot_be_published(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOPT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("kopt.cli.endpoint.DEADLINE_S", 0.3)
    done = CliRunner().invoke(app, ["estimate", "train.py", "--publish", "-o", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["memory"]["peak_bytes"] > 0
    assert "the prediction endpoint http://127.0.0.1:9 gives no answer" in done.stderr


def test_an_endpoint_that_does_not_answer_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KOPT_HOME", str(tmp_path))
    monkeypatch.setenv("KOPT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("kopt.cli.endpoint.DEADLINE_S", 0.5)
    done = _run()
    assert done.exit_code == 1
    assert done.stderr.startswith("kopt: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_useful_gpus_come_with_a_json_patch_and_follow_own_runs(calls: list[Any], tmp_path: Path) -> None:
    (tmp_path / "pretrain.json").write_text(json.dumps(manifest(8, 8, 64)))
    done = _run("pretrain.json", "--gpu", "h100", "-o", "json")
    assert done.exit_code == 0, done.stderr
    (told,) = json.loads(done.stdout)["recommendations"]
    count = told["gpu_count"]
    assert count["requested_gpus"] == 64 > count["useful_gpus"]
    text = _run("-o", "patch").stdout
    assert "as a JSON Patch of the manifest" in text
    (operations,) = [each for each in yaml.safe_load_all(text) if isinstance(each, list)]
    assert read(patched(manifest(8, 8, 64), operations))[1] == count["advised_gpus"]
    (row,) = csv.DictReader(io.StringIO(_run("-o", "csv").stdout))
    assert int(row["useful_gpus"]) == count["useful_gpus"]
    step = {point["gpus"]: point["step_seconds"] for point in count["points"]}
    own = [f"--measured={gpus}={step[8] / 1.02**number}" for number, gpus in enumerate((8, 16, 32, 64))]
    (slow,) = json.loads(_run("pretrain.json", "--gpu", "h100", *own, "-o", "json").stdout)["recommendations"]
    assert slow["gpu_count"]["advised_gpus"] <= 8
    assert _run("pretrain.json", "--measured", "eight=1").exit_code == 2
