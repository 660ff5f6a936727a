"""Configurations in Python: read as what they set, never run, whatever they hold."""

import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.formats.entrypoint import EntrypointError
from kopt.formats.python_config import read_python_config

MMENGINE = """
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM
path = 'internlm/internlm2-7b'
max_length = int(2048 - (336 / 14) ** 2)
sequence_parallel_size = 2
accumulative_counts = 16
accumulative_counts *= sequence_parallel_size
sampler = Special if sequence_parallel_size > 1 else Plain
model = dict(
    llm=dict(type=AutoModelForCausalLM.from_pretrained, name=path, torch_dtype=torch.float16),
    lora=dict(type=LoraConfig, r=64, alpha=-1),
)
loader = {**dict(batch_size=1), 'length': max_length, 'known': unknown(1)['x']}
hooks = [dict(type=Info)]
if sequence_parallel_size > 1:
    hooks += [dict(type=Varlen)]
else:
    model = None
model['llm']['name'] = f'{path}-chat'
trainer = TrainerConfig(model_cfg=Qwen3Dense8BConfig(), steps=len(hooks), batch=os.environ.get('B', 4))
"""


def test_a_configuration_is_what_its_names_are_in_the_end() -> None:
    found = read_python_config(MMENGINE)
    assert (found["max_length"], found["accumulative_counts"], found["sampler"]) == (1472, 32, "Special")
    assert found["model"]["llm"] == {
        "type": "AutoModelForCausalLM.from_pretrained",
        "name": "internlm/internlm2-7b-chat",
        "torch_dtype": "torch.float16",
    }
    assert found["model"]["lora"] == {"type": "LoraConfig", "r": 64, "alpha": -1}
    assert found["loader"] == {"batch_size": 1, "length": 1472}
    assert [hook["type"] for hook in found["hooks"]] == ["Info", "Varlen"]
    assert found["trainer"]["model_cfg"] == {"type": "Qwen3Dense8BConfig"}
    assert found["trainer"]["batch"] == 4
    assert "type" in found["trainer"]["steps"], "a call that nobody makes is its name, not a number"


def test_files_that_it_builds_on_are_named() -> None:
    source = "from mmengine.config import read_base\nwith read_base():\n    from .base.llama import *\nx = 1\n"
    assert read_python_config(source) == {"_base_": [".base.llama"], "x": 1}


def test_nothing_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "made"
    source = (
        f"open({str(target)!r}, 'w').write('x')\n__import__('os').system('touch {target}')\n"
        f"class Evil:\n    open({str(target)!r}, 'w')\n"
        f"batch_size = (lambda: open({str(target)!r}, 'w'))()\n"
        f"x = [open({str(target)!r}, 'w') for _ in range(3)]\nimport {target.stem}\n"
    )
    found = read_python_config(source)
    assert not target.exists()
    assert not isinstance(found.get("batch_size"), int)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("model = dict(", "not Python"),
        ("\0", "NUL"),
        ("x = " + "[" * 5000, "nested"),
        ("x = 1\n" * (1 << 20), "characters"),
    ],
    ids=["cut", "nul", "nested", "huge"],
)
def test_what_is_no_configuration_is_refused(source: str, message: str) -> None:
    with pytest.raises(EntrypointError, match=message):
        read_python_config(source)


@pytest.mark.parametrize(
    "source",
    [
        "x = 9 ** 9 ** 9 ** 9",
        "x = 'a' * 10 ** 12",
        "x = 1\n" + "x = x * x + 7\n" * 300,
        "x = 'a'\n" + "x = x + x\n" * 60,
        "x = [1]\n" + "x = x + x\n" * 60,
        "a = dict()\n" + "a = dict(a=a, b=a)\n" * 60,
        "a = 1 / 0\nb = 5 % 0\nc = 2.0 ** 1024",
        "",
    ],
)
def test_bombs_take_no_time(source: str) -> None:
    began = time.monotonic()
    read_python_config(source)
    assert time.monotonic() - began < 1


@given(
    st.text(max_size=80)
    | st.from_regex(r"(a|model|b)\s?=\s?(dict\(a=b, \*\*a\)|a\.b|a\[0\]|-a|\{a: b\}|1 if a else b)", fullmatch=True)
)
def test_any_text_is_read_or_refused(source: str) -> None:
    try:
        assert isinstance(read_python_config(source), dict)
    except EntrypointError as refusal:
        message = str(refusal)
        assert message.strip()


@pytest.mark.parametrize(
    "source",
    ["x = int('--5')", "x = int('²')", f"x = f'{{0x{'f' * 9000}}}'", f"x = 0x{'f' * 9000}\ny = str(x)\nz = x - 1"],
)
def test_no_number_ends_the_reading(source: str) -> None:
    assert read_python_config(source) == {"_unread_": [name for name in "xyz" if f"{name} =" in source]}


@pytest.mark.parametrize(
    "source",
    [
        "l = ['']\n" + "l = l + l\n" * 12 + "d = dict()\n" + "".join(f"d['{n}']=l+['']\n" for n in range(2000)),
        "s = 'a'\n" + "s = s + s\n" * 13 + "d = dict()\n" + "".join(f"d['{n}']=s+'a'\n" for n in range(2000)),
        "s = 'a'\n" + "s = s + s\n" * 13 + "d = dict()\n" + "".join(f"d['{n}']=f'{{s}}'\n" for n in range(2000)),
        "s = a\n" + "s = s.aaaaaaaa\n" * 2000 + "d = dict()\n" + "".join(f"d['{n}']=s.b\n" for n in range(2000)),
        "d = dict("
        + ",".join(f"a{n}=1" for n in range(2000))
        + ")\n"
        + "".join(f"d.b{n} = dict(**d)\n" for n in range(2000)),
    ],
    ids=["lists", "texts", "formats", "attributes", "mappings"],
)
def test_what_is_copied_has_a_budget(source: str) -> None:
    tracemalloc.start()
    with pytest.raises(EntrypointError, match="larger than configurations are; give"):
        read_python_config(source)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 40 << 20


@pytest.mark.parametrize(
    "changes",
    [
        "try:\n    batch_size = 16\nexcept ImportError:\n    pass",
        "for _ in range(3):\n    batch_size *= 2",
        "while more():\n    batch_size += 1",
        "if torch.cuda.device_count() > 1:\n    batch_size = 16",
        "if UNDEFINED:\n    pass\nelse:\n    batch_size = 16",
        "if UNDEFINED:\n    batch_size = 16",
        "if UNDEFINED == 'x':\n    pass\nelse:\n    batch_size = 16",
        "def f():\n    global batch_size\n    batch_size = 16\nf()",
        "with open('x') as batch_size:\n    pass",
        "batch_size, *others = 16, 2",
        "match x:\n    case 1:\n        batch_size = 16",
        "batch_size = read()['x'] * 2",
    ],
)
def test_what_a_part_that_is_not_run_sets_is_not_known(changes: str) -> None:
    result = read_python_config(f"batch_size = 1\n{changes}\n")
    assert "batch_size" not in result
    assert "batch_size" in result["_unread_"]


@pytest.mark.parametrize(
    "changes",
    [
        "for n in range(2):\n    loader['batch_size'] = n",
        "if X:\n    del loader['batch_size']",
        "loader.update(more())",
        "loader[KEY] = 16",
        "try:\n    loader.update(batch_size=2)\nfinally:\n    pass",
        "loader['batch_size'] = -X",
    ],
)
def test_entries_that_a_part_that_is_not_run_sets_are_not_known(changes: str) -> None:
    result = read_python_config(f"loader = dict(batch_size=1)\n{changes}\n")
    assert "batch_size" not in result.get("loader", {})
    assert {"batch_size", "loader"} & set(result["_unread_"])


def test_chains_of_calls_are_read_once() -> None:
    source = "try:\n" + ("    a" + ".update()" * 200 + "\n") * 100 + "finally:\n    pass\n"
    began = time.process_time()
    read_python_config(f"a = dict()\n{source}")
    assert time.process_time() - began < 1


BASES = {
    "configs/base/llm.py": "model = dict(type='SFT', llm=dict(a=1, b=2))\nlr = 1\n_own = 3\n",
    "configs/base/all.py": "with read_base():\n    from .llm import *\nlr = 2\n",
    "configs/loop.py": "_base_ = 'loop.py'\n",
}


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("with read_base():\n    from .base.llm import *\nmodel.llm.a = 5\n", {"llm": {"a": 5, "b": 2}, "lr": 1}),
        ("with read_base():\n    from ..configs.base.all import *\n", {"llm": {"a": 1, "b": 2}, "lr": 2}),
        ("with read_base():\n    from .base.llm import lr as rate, model\n", {"llm": {"a": 1, "b": 2}, "rate": 1}),
        ("_base_ = ['base/llm.py']\nmodel = dict(llm=dict(b=3))\n", {"llm": {"a": 1, "b": 3}, "lr": 1}),
        ("_base_ = './base/llm.py'\nmodel = dict(llm=dict(_delete_=True, c=3))\n", {"llm": {"c": 3}, "lr": 1}),
        (
            "with read_base():\n    from .base.llm import *\nmodel.update(dict(llm=dict(c=1)))",
            {"llm": {"c": 1}, "lr": 1},
        ),
    ],
)
def test_files_that_it_builds_on_are_read_where_they_lie_beside(source: str, read: dict[str, object]) -> None:
    result = read_python_config(source, "configs/own.py", BASES.get)
    model = result.pop("model")
    assert {"llm": model["llm"], **{name: result[name] for name in read if name != "llm"}} == read
    assert model["type"] == "SFT"
    assert "_base_" not in result
    assert "_own" not in result or source.startswith("_base_")


@pytest.mark.parametrize(
    "source",
    [
        "with read_base():\n    from .gone import *\n",
        "with read_base():\n    from mmengine.base import *\n",
        "_base_ = ['base/llm.py', 'gone.py']\n",
        "_base_ = 'loop.py'\n",
    ],
)
def test_what_it_builds_on_and_is_not_there_is_named(source: str) -> None:
    assert read_python_config(source, "configs/own.py", BASES.get)["_base_"]


def test_files_that_build_on_each_other_share_one_budget() -> None:
    wide = {f"f{n}.py": f"_base_ = ['f{n + 1}.py', 'f{n + 1}.py']\nx{n} = 1\n" for n in range(40)}
    assert read_python_config(wide["f0.py"], "f0.py", wide.get)["_base_"]
    huge = {f"f{n}.py": "x = [" + "1," * 1000 + "]\n" + "y = x + x\n" * 30 for n in range(20)}
    with pytest.raises(EntrypointError, match="larger than configurations are"):
        read_python_config(f"_base_ = {sorted(huge)}\n", "own.py", huge.get)


@pytest.mark.parametrize(
    "changes",
    [
        "def never():\n    model.update(dict(b=2))\n",
        "try:\n    model.update({'b': 2})\nexcept ImportError:\n    pass\n",
        "if unknown:\n    model.update(dict(b=2))\n",
    ],
)
def test_an_update_that_may_not_run_leaves_nothing_known(changes: str) -> None:
    result = read_python_config(f"model = dict(b=64)\n{changes}")
    assert "model" not in result
    assert "model" in result["_unread_"]


def test_files_that_it_builds_on_are_read_once_and_count() -> None:
    asked: list[str] = []

    def read(path: str) -> str | None:
        asked.append(path)
        return "x = 1\n"

    read_python_config("_base_ = ['a.py', 'a.py', 'a.py']\n", "own.py", read)
    assert asked == ["a.py"]
    comments = {f"f{n}.py": "#" + "x\n#" * 40_000 for n in range(25)}
    with pytest.raises(EntrypointError, match="larger than configurations are"):
        read_python_config(f"_base_ = {sorted(comments)}\n", "own.py", comments.get)


def test_mappings_named_twice_on_each_level_are_not_merged_without_end() -> None:
    body = "m0 = dict(x=1)\n" + "".join(f"m{at} = dict(a=m{at - 1}, b=m{at - 1})\n" for at in range(1, 30))
    files = {"deep.py": body}
    with pytest.raises(EntrypointError, match="larger than configurations are"):
        read_python_config("_base_ = './deep.py'\n" + body, "own.py", files.get)


@pytest.mark.parametrize(
    ("base", "named"), [("'./x.py'", []), ("f()", ["(computed)"]), ("3", ["(computed)"]), ("['./x.py']", [])]
)
def test_both_ways_to_build_on_files_stand_in_one_configuration(base: str, named: list[str]) -> None:
    source = f"_base_ = {base}\nwith read_base():\n    from .missing import *\n"
    read = read_python_config(source, "own.py", {"x.py": "_unread_ = 4\nsize = 1\n"}.get)
    assert read["_base_"] == [*named, ".missing"]
    assert read.get("size") == (None if named else 1)
    assert "_unread_" not in read
