"""Where the probe cannot answer it says why, and it never meets the script's own modules."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kopt.tracing.events import Event, Role
from kopt.tracing.timeline import replay
from tests.sizing.probing import PROBE, Run, start

pytestmark = [pytest.mark.trainers, pytest.mark.slow]
Probe = Callable[..., Run]


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


@pytest.fixture
def inline(torch_python: str, tmp_path: Path, compiled: Path) -> Callable[..., Run]:
    """Runs a text as a script."""

    def run(text: str, *arguments: str, **environment: str) -> Run:
        variables = {"KOPT_PROBE_CACHE": str(compiled), "KOPT_PROBE_WORLD_SIZE": "1", **environment}
        return start([torch_python, str(PROBE), str(_written(tmp_path, text)), *arguments], tmp_path, variables)

    return run


def test_a_scripts_modules_may_have_any_name(probe: Probe) -> None:
    run = probe("namesakes/train.py")
    assert run.ended == "finished", run.output


GENERATES = """
import torch
table = torch.randn(1000, 1000, device="cuda")
ids, cache = torch.zeros(4, dtype=torch.long, device="cuda"), []
for _ in range(50):
    ids = table[ids].argmax(-1)
    cache.append(torch.empty(3 << 20, dtype=torch.uint8, device="cuda"))
    if (ids == 2).all():
        break
"""


def test_texts_are_generated_to_their_longest(inline: Callable[..., Run]) -> None:
    run = inline(GENERATES)
    made = run.trace.rows[run.trace.rows[:, 0] == Event.ALLOC]
    assert (made[:, 2] == 3 << 20).sum() == 50, run.output


TWO_GPUS = """
import torch
first, second = torch.nn.Linear(256, 256).to("cuda:0"), torch.nn.Linear(256, 512).to("cuda:1")
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
for _ in range(3):
    loss = second(first(torch.randn(8, 256, device="cuda:0")).to("cuda:1")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_one_process_may_use_two_gpus(inline: Callable[..., Run]) -> None:
    trace = inline(TWO_GPUS, KOPT_PROBE_WORLD_SIZE="2").trace
    held = [replay(trace, rank=rank).breakdown for rank in trace.ranks]
    # Weights and biases of four bytes a number; Adam has two of each, and its step counts on the CPU.
    assert [one.weights for one in held] == [256 * 257 * 4, 512 * 257 * 4]
    assert [one.optimizer for one in held] == [2 * 256 * 257 * 4, 2 * 512 * 257 * 4]


def test_an_error_ends_with_the_scripts_own_traceback(probe: Probe) -> None:
    run = probe("broken.py")
    end = run.trace.end
    assert end is not None
    assert (end.reason, end.steps) == ("error", 1)
    assert "broken.py" in (end.error or "")
    assert "17" in (end.error or "")
    assert "_kopt_probe" not in (end.error or "")


@pytest.mark.long
def test_without_a_compiler_it_says_what_is_needed(torch_python: str, tmp_path: Path) -> None:
    variables = {"KOPT_PROBE_CACHE": str(tmp_path / "cache"), "PATH": "/nonexistent", "CXX": ""}
    run = start([torch_python, str(PROBE), str(_written(tmp_path, "print(1)"))], tmp_path, variables)
    assert run.ended.startswith("unsupported")
    assert "g++" in run.ended


@pytest.mark.long
def test_a_device_beyond_the_world_is_refused_as_by_cuda(inline: Callable[..., Run]) -> None:
    run = inline("import torch\ntorch.cuda.set_device(1)\n")
    assert run.ended.startswith("error")
    assert "invalid device ordinal" in run.ended


def test_arguments_exit_codes_and_a_quiet_end(inline: Callable[..., Run]) -> None:
    run = inline("import sys\nassert sys.argv[1:] == ['--a', 'b']\nsys.exit(0)\n", "--a", "b")
    assert run.ended == "finished", run.output
    assert inline("raise SystemExit(3)\n").ended.startswith("error")


def test_the_chosen_gpu_answers(inline: Callable[..., Run]) -> None:
    text = """
import torch
p = torch.cuda.get_device_properties(0)
assert (p.name, p.total_memory, p.major, torch.cuda.get_device_capability()) == ("Fake 9000", 1 << 34, 9, (9, 0))
assert torch.cuda.mem_get_info()[1] == 1 << 34 and torch.cuda.is_bf16_supported() and torch.cuda.device_count() == 1
before = torch.cuda.memory_allocated()
kept = torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_allocated() - before == 4 << 20
with torch.cuda.stream(torch.cuda.Stream()) as s:
    other = torch.empty(1 << 20, device="cuda")
other.record_stream(torch.cuda.current_stream())
a = torch.randn(64, 64, device="cuda") @ torch.randn(64, 64, device="cuda")
e = torch.cuda.Event(enable_timing=True); e.record(); torch.cuda.synchronize(); e.elapsed_time(e)
torch.cuda.empty_cache()
"""
    gpu = '{"name": "Fake 9000", "memory_bytes": 17179869184, "compute_units": 1, "major": 9, "minor": 0}'
    run = inline(text, KOPT_PROBE_GPU=gpu)
    assert run.ended == "finished", run.output
    rows = run.trace.rows
    assert set(rows[rows[:, 0] == Event.ALLOC, 3].tolist()) == {0, 1}
    assert (rows[:, 0] == Event.EMPTY_CACHE).sum() == 1
    assert rows[rows[:, 0] == Event.WORKSPACE, 2].tolist() == [32 << 20]


@pytest.mark.long
def test_storages_end_when_the_last_view_does(inline: Callable[..., Run]) -> None:
    text = """
import torch
whole = torch.empty(1000, 100, device="cuda")
part = whole[10:20].t()
del whole
assert torch.cuda.memory_allocated() == 400_000
del part
assert torch.cuda.memory_allocated() == 0
s = torch.empty(256, device="cuda"); s.untyped_storage().resize_(0)
assert torch.cuda.memory_allocated() == 0
s.untyped_storage().resize_(1024)
assert torch.cuda.memory_allocated() == 1024
"""
    run = inline(text)
    assert run.ended == "finished", run.output
    # The script's globals end with it.
    assert sum(run.alive().values()) == 0
    assert (run.trace.rows[:, 0] == Event.ALLOC).sum() == 3


@pytest.mark.long
def test_four_bit_weights_take_half_a_byte_each(inline: Callable[..., Run]) -> None:
    text = """
import torch
from transformers import AutoModelForCausalLM
class Bits:
    load_in_4bit, bnb_4bit_compute_dtype, bnb_4bit_use_double_quant = True, torch.bfloat16, True
model = AutoModelForCausalLM.from_pretrained(
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0", quantization_config=Bits(), device_map="auto", torch_dtype=torch.bfloat16)
print(model(input_ids=torch.ones(1, 8, dtype=torch.long).cuda()).logits.shape)
"""
    run = inline(text)
    assert run.ended == "finished", run.output
    weights = run.ever(Role.WEIGHTS)
    linear = 22 * (2 * 2048 * 2048 + 2 * 2048 * 256 + 3 * 2048 * 5632)
    rest = 2 * (2 * 32000 * 2048 + (2 * 22 + 1) * 2048)
    assert weights == linear // 2 + rest


def test_what_a_script_asks_in_passing_is_no_obstacle_and_nothing_is_left_in_its_folder(
    inline: Callable[..., Run], tmp_path: Path
) -> None:
    """A metric that cannot be fetched has the library's own layout: its ``load`` lies in a module of the package and
    raises where there is no network."""
    package = tmp_path / "evaluate"
    package.mkdir()
    (package / "__init__.py").write_text("from .loading import load\n")
    (package / "loading.py").write_text("def load(path):\n    raise FileNotFoundError(path)\n")
    text = """
import evaluate, torch
metric = evaluate.load('glue')
metric.add_batch(predictions=[1], references=[1])
print('accuracy', metric.compute()['accuracy'])
assert 'PyTorch built with' in torch.__config__.show()
print('asked')
torch.save({'a': torch.ones(3)}, 'out.pt')
print('saved')
"""
    run = inline(text)
    assert "accuracy 0.0" in run.output
    assert "asked" in run.output
    assert "saved" in run.output
    assert sorted(set(os.listdir(tmp_path)) - {"__pycache__"}) == ["evaluate", "script.py"]  # noqa: PTH208


@pytest.mark.long
def test_generators_graphs_streams_and_default_devices(inline: Callable[..., Run]) -> None:
    text = """
import torch
generator = torch.Generator(device="cuda").manual_seed(3)
assert isinstance(generator, torch.Generator) and generator.device.type == "cuda"
assert sorted(torch.randperm(4, device="cuda", generator=generator).tolist()) == [0, 1, 2, 3]
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    doubled = torch.ones(3, device="cuda") * 2
assert doubled.tolist() == [2.0, 2.0, 2.0]
torch.set_default_device("cuda")
assert torch.zeros(3).device == torch.device("cuda", 0)
"""
    run = inline(text)
    assert run.ended == "finished", run.output
    assert any("graphs" in one for one in run.trace.assumptions)


@pytest.mark.long
def test_a_copied_model_is_a_model(inline: Callable[..., Run]) -> None:
    text = """
import copy, torch
model = torch.nn.Linear(256, 256).cuda()
average = copy.deepcopy(model)
assert isinstance(average.weight, torch.nn.Parameter) and average.weight is not model.weight
assert len(list(average.parameters())) == 2
assert torch.cuda.memory_allocated() == 2 * 4 * (256 * 256 + 256)
"""
    run = inline(text)
    assert run.ended == "finished", run.output


@pytest.mark.long
def test_few_bits_without_the_package_that_keeps_them(inline: Callable[..., Run]) -> None:
    """Half a byte each and one scale (a float) per 64; two states of a byte each with a scale per 256."""
    text = """
import importlib.util, torch
assert importlib.util.find_spec("bitsandbytes") is None
import bitsandbytes as bnb
before = torch.cuda.memory_allocated()
packed = bnb.nn.Linear4bit(1024, 1024, bias=False, compute_dtype=torch.bfloat16, compress_statistics=False).cuda()
assert isinstance(packed.weight, bnb.nn.Params4bit) and packed.weight.dtype is torch.uint8
assert torch.cuda.memory_allocated() - before == (1 << 19) + 4 * (1 << 14) + 4 * 16
layer = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = bnb.optim.AdamW8bit(layer.parameters())
packed(layer(torch.randn(8, 1024, device="cuda"))).sum().backward()
before = torch.cuda.memory_allocated()
optimizer.step()
assert torch.cuda.memory_allocated() - before == 2 * ((1 << 20) + 4 * (1 << 12) + 4 * 256)
"""
    run = inline(text)
    assert run.ended == "finished", run.output + run.ended
    assert any(one.what == "bitsandbytes" for one in run.trace.stand_ins)


@pytest.mark.long
def test_layers_that_learn_their_width_from_the_first_batch(inline: Callable[..., Run]) -> None:
    text = """
import torch
from torch import nn
model = nn.Sequential(nn.LazyLinear(512), nn.ReLU(), nn.LazyBatchNorm1d(), nn.Linear(512, 4)).cuda()
model(torch.randn(8, 300).cuda())
assert type(model[0]) is nn.Linear and model[0].weight.shape == (512, 300) and model[0].weight.is_cuda
assert isinstance(model[0].weight, nn.Parameter) and len(list(model.parameters())) == 6
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 300).cuda()).sum().backward()
optimizer.step()
assert optimizer.state[model[0].weight]["exp_avg"].shape == (512, 300)
"""
    run = inline(text)
    assert run.ended == "finished", run.output + run.ended


@pytest.mark.long
def test_generation_ends_at_its_length_and_a_pass_in_inference_mode_counts_its_parts(
    inline: Callable[..., Run],
) -> None:
    text = """
import torch
stop, tokens = torch.zeros(4, dtype=torch.bool, device="cuda"), torch.ones(4, 1, dtype=torch.long, device="cuda")
head = torch.randn(64, 100, device="cuda")
running, steps = torch.ones(4, dtype=torch.long, device="cuda"), 0
while not bool(running.max() == 0):
    scores = torch.randn(4, 64, device="cuda") @ head
    chosen = scores.argmax(-1)
    tokens = torch.cat([tokens, chosen[:, None]], 1)
    done = torch.full((4,), tokens.shape[1] >= 20, device="cuda") | torch.isin(chosen, torch.tensor([2]).cuda())
    running = running & ~done
    steps += 1
assert steps == 19, steps
with torch.inference_mode():
    layer = torch.nn.Linear(256, 256).cuda()
    before = torch.cuda.max_memory_allocated()
    kept = torch.repeat_interleave(layer(torch.ones(64, 256, device="cuda")), 4, 0)
    assert kept.shape == (256, 256)
    assert torch.ones(3, device="cuda").sum().item() == 3
"""
    run = inline(text)
    assert run.ended == "finished", run.output + run.ended


@pytest.mark.long
def test_a_launchers_variables_are_there_for_who_needs_them_only(inline: Callable[..., Run]) -> None:
    text = """
import os
assert "RANK" not in os.environ and os.environ.get("RANK", "none") == "none" and os.getenv("LOCAL_RANK") is None
assert int(os.environ["LOCAL_RANK"]) == 0 and os.environ["WORLD_SIZE"] == "1"
import torch.distributed as dist
dist.init_process_group("nccl")
assert dist.get_world_size() == 1
"""
    run = inline(text)
    assert run.ended == "finished", run.output + run.ended
    assert any("LOCAL_RANK is not set" in one for one in run.trace.assumptions)


@pytest.mark.long
def test_the_compilers_package_is_there_for_who_asks(inline: Callable[..., Run]) -> None:
    text = """
import sys, torch
torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device="cuda"))]).zero_grad()
torch._dynamo.config.suppress_errors = True
torch._dynamo.reset()
assert "torch._dynamo.eval_frame" not in sys.modules
from torch._dynamo.eval_frame import OptimizedModule
import torch._dynamo
assert torch._dynamo.config.suppress_errors and torch._dynamo.OptimizedModule is OptimizedModule
"""
    run = inline(text)
    assert run.ended == "finished", run.output + run.ended


@pytest.mark.long
def test_saved_tensors_may_wait_in_the_hosts_memory(inline: Callable[..., Run]) -> None:
    """Eight activations of 32 MiB are saved; on the host all but the one at hand are off the GPU."""
    text = """
import contextlib, sys, torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]).cuda()
with torch.autograd.graph.save_on_cpu() if "host" in sys.argv else contextlib.nullcontext():
    loss = model(torch.randn(8192, 1024, device="cuda")).mean()
print("kept", torch.cuda.memory_allocated() - 4 * 8 * (1024 * 1024 + 1024))
"""
    kept = {}
    for where in ("gpu", "host"):
        run = inline(text, where)
        assert run.ended == "finished", run.output + run.ended
        kept[where] = int(run.output.split("kept ")[1].split()[0])
    tensor = 32 << 20
    assert 16 * tensor <= kept["gpu"] < 16 * tensor + (1 << 20)
    assert kept["host"] < 1 << 20
