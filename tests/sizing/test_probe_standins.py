"""What scripts ask of files, notebooks and the end of the memory is answered by stand-ins, each said in the stream."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sizing.probing import PROBE, Run, start

pytestmark = [pytest.mark.trainers, pytest.mark.slow]
Inline = Callable[..., Run]
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(5):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HEAD = """
import os, torch
model = torch.nn.Linear(64, 64).cuda()
"""


@pytest.fixture
def inline(torch_python: str, tmp_path: Path, compiled: Path) -> Inline:
    """Runs a text as a script."""

    def run(text: str, **environment: str) -> Run:
        (tmp_path / "script.py").write_text(text)
        variables = {"KOPT_PROBE_CACHE": str(compiled), "KOPT_PROBE_WORLD_SIZE": "1", **environment}
        return start([torch_python, str(PROBE), "script.py"], tmp_path, variables)

    return run


def _stand_ins(run: Run) -> str:
    return " ".join(one.what for one in run.trace.stand_ins)


def test_an_exported_notebook_runs_without_ipython(inline: Inline) -> None:
    magics = """
get_ipython().run_line_magic('matplotlib', 'inline')
get_ipython().system('pip install -q nothing')
files = get_ipython().getoutput('ls')
assert files == [] and not get_ipython().run_line_magic('timeit', '-n 10 -r 3 kept = 2')
get_ipython().run_line_magic('env', 'WHO=me')
assert os.environ["WHO"] == "me" and kept == 2
"""
    cell = f"get_ipython().run_cell_magic('time', '', {'!ls' + LOOP!r})\n"
    foreign = "get_ipython().run_cell_magic('bash', '', 'exit 1')\ndisplay(model)\n"
    run = inline(HEAD + magics + foreign + cell)
    assert run.ended.startswith("steady"), run.output
    assert "!pip install -q nothing" in _stand_ins(run)
    assert "%%bash" in _stand_ins(run)


@pytest.mark.long
def test_a_script_that_does_not_ask_for_ipython_is_not_told_of_one(inline: Inline) -> None:
    run = inline("import builtins\nassert not hasattr(builtins, 'get_' + 'ipython')\n")
    assert run.ended == "finished", run.output


def test_a_script_that_halves_its_batch_meets_the_end_of_the_memory(inline: Inline) -> None:
    text = """
batch = 1 << 22
while True:
    try:
        model(torch.randn(batch, 64, device="cuda")).sum().backward()
        break
    except torch.cuda.OutOfMemoryError as error:
        assert "Tried to allocate" in str(error)
        batch //= 2
assert 1 << 18 < batch < 1 << 21, batch
"""
    memory = '{"memory_bytes": 1073741824}'
    run = inline(HEAD + text + LOOP, KOPT_PROBE_GPU=memory)
    assert run.ended.startswith("steady"), run.ended
    assert run.peak() < 1 << 30
    assert any("went on with less" in one for one in run.trace.warnings)


@pytest.mark.long
def test_by_the_text_of_the_error_and_in_a_function_as_well(inline: Inline) -> None:
    text = """
def fits(batch):
    try:
        model(torch.randn(batch, 64, device="cuda"))
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return False
    return True

assert not fits(1 << 23) and fits(1 << 10)
"""
    run = inline(HEAD + text + LOOP, KOPT_PROBE_GPU='{"memory_bytes": 1073741824}')
    assert run.ended.startswith("steady"), run.ended


@pytest.mark.long
def test_a_script_that_would_die_of_it_goes_on_so_that_its_need_is_known(inline: Inline) -> None:
    text = "large = torch.empty(1 << 30, device='cuda')\n"
    other = "\ntry:\n    torch.empty(8)\nexcept torch.cuda.OutOfMemoryError:\n    raise\n"
    run = inline(HEAD + other + text + LOOP, KOPT_PROBE_GPU='{"memory_bytes": 1073741824}')
    assert run.ended.startswith("steady"), run.ended
    assert run.peak() > 4 << 30


def test_a_checkpoint_that_is_not_there_is_not_loaded(inline: Inline) -> None:
    text = """
found = torch.load("/absent/checkpoint.pt", map_location="cuda")
model.load_state_dict(found["model"])
model.load_state_dict({key.removeprefix("module."): value for key, value in found["model"].items()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.load_state_dict(found["optimizer"])
assert list(range(found["epoch"] + 1, 3)) == [1, 2]
"""
    run = inline(HEAD + text + LOOP)
    assert run.ended.startswith("steady"), run.ended
    assert "/absent/checkpoint.pt" in _stand_ins(run)


@pytest.mark.long
def test_a_script_that_does_without_the_file_does_so(inline: Inline) -> None:
    text = """
try:
    torch.load("absent.pt")
    raise SystemExit(9)
except FileNotFoundError:
    pass
"""
    run = inline(HEAD + text + LOOP)
    assert run.ended.startswith("steady"), run.ended
    assert "absent.pt" not in _stand_ins(run)


@pytest.mark.long
def test_data_that_is_not_there_ends_with_the_name_of_its_file(inline: Inline) -> None:
    run = inline(HEAD + "rows = torch.load('rows.pt').float()\n")
    assert run.ended.startswith("error")
    assert "FileNotFoundError" in run.ended
    assert "rows.pt" in run.ended


@pytest.mark.long
def test_a_file_of_tokens_that_is_not_there_is_zeros(inline: Inline) -> None:
    text = """
import numpy as np
tokens = np.memmap("absent/train.bin", dtype=np.uint16, mode="r")
assert tokens.dtype == np.uint16 and len(tokens) > 1 << 20 and not tokens[:10].any()
np.save("real.npy", np.arange(8, dtype=np.uint8))
assert np.memmap("real.npy", dtype=np.uint8, mode="r")[-1] == 7
"""
    run = inline(HEAD + text + LOOP)
    assert run.ended.startswith("steady"), run.ended + run.output
    assert "absent/train.bin" in _stand_ins(run)


@pytest.mark.long
@pytest.mark.parametrize(("status", "ended"), [(0, "finished"), (3, "error the script exited with 3")])
def test_leaving_in_the_middle_tells_what_was_done(inline: Inline, status: int, ended: str) -> None:
    child = "if os.fork() == 0:\n    os._exit(1)\nos.wait()\n"
    run = inline(HEAD + child + LOOP.replace("range(5)", "range(1)") + f"os._exit({status})\n")
    assert run.ended == ended
    assert run.trace.end is not None
    assert run.trace.end.steps == 1


CLASSIFIER = """
import torchvision
from torchvision.transforms import ToTensor
"""


@pytest.mark.long
def test_digits_that_are_not_there_are_tensors_with_their_classes(inline: Inline) -> None:
    text = """
digits = torchvision.datasets.MNIST("./nowhere", download=True, transform=ToTensor())
assert digits.class_to_idx and digits.data.unsqueeze(1).shape[1:] == (1, 28, 28)
model = torch.nn.Linear(784, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in torch.utils.data.DataLoader(digits, batch_size=64, shuffle=True):
    torch.nn.functional.cross_entropy(model(images.flatten(1).cuda()), labels.cuda()).backward()
    optimizer.step()
"""
    run = inline("import torch" + CLASSIFIER + text)
    assert run.ended.startswith("steady"), run.output
    assert "data set MNIST" in _stand_ins(run)


_SAMPLED = pytest.param("sampler=torch.utils.data.RandomSampler(images)", marks=pytest.mark.long)


@pytest.mark.parametrize("loader", ["shuffle=True", _SAMPLED])
def test_a_batch_is_as_large_as_asked_for_however_few_samples_there_are(inline: Inline, loader: str) -> None:
    text = f"""
images = torchvision.datasets.CIFAR10("./nowhere", download=True, transform=ToTensor())
model = torch.nn.Linear(3072, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, labels in torch.utils.data.DataLoader(images, batch_size=5000, {loader}):
    assert len(batch) == len(labels) == 5000
    torch.nn.functional.cross_entropy(model(batch.flatten(1).cuda()), labels.cuda()).backward()
    optimizer.step()
"""
    run = inline("import torch" + CLASSIFIER + text)
    assert run.ended.startswith(("steady", "finished")), run.output


@pytest.mark.long
def test_a_sampler_of_one_s_own_is_said_to_make_the_batch_smaller(inline: Inline) -> None:
    text = """
images = torchvision.datasets.CIFAR10("./nowhere", download=True, transform=ToTensor())
model = torch.nn.Linear(3072, 10).cuda()
own = torch.utils.data.WeightedRandomSampler([1.0] * len(images), len(images))
for batch, labels in torch.utils.data.DataLoader(images, batch_size=5000, sampler=own):
    torch.nn.functional.cross_entropy(model(batch.flatten(1).cuda()), labels.cuda()).backward()
"""
    run = inline("import torch" + CLASSIFIER + text)
    assert any("5,000" in warning for warning in run.trace.warnings), run.output


def test_timm_s_loader_gets_blank_images(inline: Inline) -> None:
    text = """
import torch
from timm.data import create_dataset, create_loader
images = create_dataset("", root="./nowhere", split="train", is_training=True, batch_size=8)
loader = create_loader(images, input_size=(3, 64, 64), batch_size=8, is_training=True, num_workers=0)
model = torch.nn.Linear(3 * 64 * 64, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, labels in loader:
    torch.nn.functional.cross_entropy(model(batch.flatten(1)), labels).backward()
    optimizer.step()
"""
    run = inline(text)
    assert run.ended.startswith("steady"), run.output


RANKS = """
import torch
torch.distributed.init_process_group("nccl")
"""


@pytest.mark.long
def test_data_parallel_training_moves_its_inputs(inline: Inline) -> None:
    text = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8).to(0), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    out = model(torch.randn(20, 64))
    assert out.device.type == "cuda"
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    run = inline(RANKS + text, KOPT_PROBE_WORLD_SIZE="2")
    assert run.ended.startswith(("steady", "finished")), run.output


def test_sharded_modules_leave_the_meta_device(inline: Inline) -> None:
    text = """
from torch.distributed.fsdp import fully_shard
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda:0")
assert all(parameter.to_local().device.type == "cuda" for parameter in model.parameters())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(6):
    model(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    run = inline(RANKS + text, KOPT_PROBE_WORLD_SIZE="2")
    assert run.ended.startswith(("steady", "finished")), run.output
