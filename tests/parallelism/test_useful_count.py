"""The useful number of GPUs of a workload: its trainer's arguments in, advice and a manifest that reads back out."""

from typing import Any

import pytest

import kopt
from kopt.core.workload.gpu_count import GpuCountAdvice
from kopt.core.workload.split import TrainingJob
from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.formats.entrypoint import pod_entrypoint
from kopt.formats.gpu_count_patch import NoPatchError, count_patch
from kopt.formats.pod_request import requested_gpus
from kopt.formats.processes import count_processes
from kopt.formats.trainers import read_plan
from kopt.models.parallelism.advice import Advisor
from kopt.models.parallelism.useful_count import counts_of, job_of_plan, useful_count
from tests.admission.patching import patched

GPU = "H100-SXM5-80GB"
MODEL = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--bf16 --use-distributed-optimizer"
)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return Advisor.load()


def manifest(nodes: int, each: int, batch: int, *, options: str = MODEL) -> dict[str, Any]:
    """An indexed Job of a Megatron-LM training."""
    launcher = f"torchrun --nnodes={nodes} --nproc-per-node {each} pretrain_gpt.py".split()
    split = f"--micro-batch-size 1 --global-batch-size {batch} --tensor-model-parallel-size 1".split()
    container = {
        "name": "main",
        "image": "registry.example.com/megatron:1",
        "command": launcher,
        "args": [*options.split(), *split, "--save", "/checkpoints"],
        "resources": {"limits": {"nvidia.com/gpu": str(each)}, "requests": {"nvidia.com/gpu": str(each)}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pretrain"},
        "spec": {
            "parallelism": nodes,
            "completions": nodes,
            "completionMode": "Indexed",
            "template": {"spec": {"containers": [container]}},
        },
    }


def read(document: dict[str, Any]) -> tuple[TrainingPlan, int]:
    """The plan and all GPUs of a manifest, by the readers that `kopt estimate` and the endpoint use."""
    entrypoint = pod_entrypoint(document, lambda _: None)
    processes = count_processes(entrypoint, lambda _: None, requested_gpus(document))
    return read_plan(entrypoint, lambda _: None, world_size=processes.total), processes.world_size


def job(document: dict[str, Any], each: int) -> TrainingJob:
    plan, gpus = read(document)
    return job_of_plan(plan, GPU, gpus, each)


def advised(advisor: Advisor, document: dict[str, Any], each: int, **options: Any) -> GpuCountAdvice:
    return useful_count(advisor, job(document, each), **options)


def test_a_small_batch_on_many_gpus_is_advised_fewer(advisor: Advisor) -> None:
    advice = advised(advisor, manifest(8, 8, 64), 8)
    assert advice.requested_gpus == 64
    assert advice.reasons[0].code == "FEWER_USEFUL"
    points = {point.gpus: point for point in advice.points}
    assert advice.advised_gpus == advice.useful_gpus
    assert advice.gives_back > 0
    within = [point for point in advice.points if point.gpus <= advice.advised_gpus]
    assert all(point.marginal_efficiency >= advice.threshold for point in within)
    following = next(point for point in advice.points if point.gpus > advice.advised_gpus)
    assert following.marginal_efficiency < advice.threshold
    assert points[64].step_low_seconds < points[64].step_seconds < points[64].step_high_seconds


def test_what_is_useful_is_never_more_than_is_asked_for(advisor: Advisor) -> None:
    advice = advised(advisor, manifest(1, 8, 1024), 8)
    assert advice.reasons[0].code == "ALL_USEFUL"
    assert (advice.useful_gpus or 0) > 8, "twice as many are looked at"
    assert advice.advised_gpus == 8
    assert advice.gives_back == 0


def test_own_runs_bend_the_curve(advisor: Advisor) -> None:
    document = manifest(4, 8, 1024)
    before = advised(advisor, document, 8)
    assert before.advised_gpus == 32
    first = {point.gpus: point.step_seconds for point in before.points}
    # On the second node and beyond this cluster's network brings next to nothing.
    slow = advised(advisor, document, 8, measured={8: first[8], 16: 0.95 * first[8], 32: 0.9 * first[8]})
    assert slow.advised_gpus == 8
    curve = {point.gpus: point for point in slow.points}
    assert curve[16].step_seconds == pytest.approx(0.95 * first[8])
    assert curve[16].step_high_seconds - curve[16].step_low_seconds < first[16]
    even = advised(advisor, document, 8, measured={8: 2 * first[8]})
    assert even.advised_gpus == 32, "a factor that is the same everywhere changes no ratio"


def test_the_patched_manifest_reads_back_as_the_split_that_was_advised(advisor: Advisor) -> None:
    document = manifest(8, 8, 64)
    advice = advised(advisor, document, 8)
    patch = count_patch(document, 64, advice.advised_gpus, advice.framework, advice.settings)
    changed = patched(document, patch)
    plan, gpus = read(changed)
    assert gpus == advice.advised_gpus == plan.parallel.world
    assert plan.micro_batch * plan.accumulation * plan.parallel.data == 64, "the batch stays"
    assert changed["spec"]["parallelism"] == changed["spec"]["completions"] == -(-gpus // 8)
    container = changed["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert "--save" in container["args"]
    assert "/checkpoints" in container["args"]
    again = job_of_plan(plan, GPU, gpus, min(gpus, 8))
    split = next(point for point in useful_count(advisor, again).points if point.gpus == gpus)
    assert split.split == next(point.split for point in advice.points if point.gpus == gpus)


def test_options_of_the_old_split_are_gone() -> None:
    options = f"{MODEL} --sequence-parallel --recompute-granularity=full --recompute_method uniform --lr 1e-4"
    document = manifest(1, 8, 64, options=options)
    settings = "--seq-length 4096\n--micro-batch-size 4\n--tensor-model-parallel-size 1"
    changed = patched(document, count_patch(document, 8, 2, "megatron", settings))
    args = changed["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not {"--sequence-parallel", "--recompute-granularity=full", "--recompute_method", "uniform"} & {*args}
    assert args[args.index("--micro-batch-size") + 1] == "4"
    assert args.count("--micro-batch-size") == 1
    assert args[args.index("--seq-length") + 1] == "2048", "what is trained is the user's"
    assert args[args.index("--lr") + 1] == "1e-4"
    assert changed["spec"]["template"]["spec"]["containers"][0]["command"][2:4] == ["--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda pod: pod.update(command=["bash", "-c", "torchrun --nproc-per-node 8 x.py"], args=[]), "shell"),
        (lambda pod: pod.update(command="torchrun"), "list of words"),
        (lambda pod: pod["resources"].update(limits={"nvidia.com/gpu": "5"}), "divide"),
        (lambda pod: pod.update(command=["python", "pretrain_gpt.py"]), "how many processes"),
    ],
)
def test_what_cannot_be_written_is_said(change: Any, why: str) -> None:
    document = manifest(1, 8, 64)
    change(document["spec"]["template"]["spec"]["containers"][0])
    with pytest.raises(NoPatchError, match=why):
        count_patch(document, 8, 4, "megatron", "--micro-batch-size 1")


def test_only_whole_trainings_that_fit_their_gpus_have_a_curve() -> None:
    plan, gpus = read(manifest(2, 8, 64))
    assert counts_of(job_of_plan(plan, GPU, gpus, 8)) == [1, 2, 4, 8, 16, 32]
    with pytest.raises(PlanError, match="not 12"):
        job_of_plan(plan, GPU, 12, 4)
    command = ["litgpt", "finetune_lora", "meta-llama/Llama-3.2-1B", "--devices", "2"]
    pod = {"spec": {"containers": [{"image": "x", "command": command}]}}
    tuned = read_plan(pod_entrypoint(pod, lambda _: None), lambda _: None)
    with pytest.raises(PlanError, match="litgpt"):
        job_of_plan(tuned, GPU, 2)


def test_python_answers_for_manifests_and_commands(advisor: Advisor) -> None:
    document = manifest(8, 8, 64)
    document["spec"]["template"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    advice = kopt.useful_gpus(document, advisor=advisor)
    assert advice.gpu == GPU
    assert read(patched(document, advice.patch))[1] == advice.advised_gpus < 64
    words = document["spec"]["template"]["spec"]["containers"][0]
    of_command = kopt.useful_gpus([*words["command"], *words["args"]], gpu="h100-80gb", advisor=advisor)
    assert of_command.points == advice.points
    assert of_command.no_patch
    with pytest.raises(PlanError, match="give gpu="):
        kopt.useful_gpus([*words["command"], *words["args"]], advisor=advisor)
    with pytest.raises(PlanError):
        kopt.useful_gpus("python train.py", gpu="h100-80gb", advisor=advisor)


def test_notebooks_show_the_curve_and_escape_it(advisor: Advisor) -> None:
    advice = advised(advisor, manifest(8, 8, 64), 8)
    html = advice._repr_html_()
    assert f"<b>{advice.advised_gpus}</b>" in html
    assert "<b>64</b>" not in html
    assert "&lt;b&gt;" in GpuCountAdvice(**{**vars(advice), "model": "<b>"})._repr_html_()
