"""The frozen suite: complete, unchanged, broad, and made of programs that need nothing but what they name."""

import ast
import itertools
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarked import benchmark_module

suite = benchmark_module("sizing_suite")
ENTRIES = suite.read_suite()
DOCUMENT = tomllib.loads(suite.MANIFEST.read_text())
FILES = sorted(path for path in suite.FOLDER.rglob("*.py") if "__pycache__" not in path.parts)

NETWORK = {
    "requests",
    "urllib",
    "http",
    "socket",
    "ftplib",
    "httpx",
    "aiohttp",
    "huggingface_hub",
    "wandb",
    "mlflow",
    "datasets",
    "gdown",
    "kagglehub",
}
DOWNLOADS = {
    "from_pretrained",
    "load_dataset",
    "load_state_dict_from_url",
    "download_url",
    "hf_hub_download",
    "snapshot_download",
    "urlopen",
    "urlretrieve",
}
MEMORY = re.compile(r"memory_allocated|memory_reserved|memory_stats|memory_summary|mem_get_info|peak_memory|pynvml|smi")


def relative(path: Path) -> str:
    return str(path.relative_to(suite.FOLDER))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def test_the_suite_is_large_and_broad() -> None:
    assert len(ENTRIES) >= 60
    assert len({one.file for one in ENTRIES}) >= 30
    assert len({one.family for one in ENTRIES}) >= 12
    assert {one.category for one in ENTRIES} >= {
        "cnn",
        "transformer",
        "detection",
        "segmentation",
        "llm-full",
        "lora",
        "diffusion",
        "rnn",
        "gnn",
        "recommender",
        "speech",
        "generative",
        "contrastive",
        "sharded",
        "inference",
    }
    assert {one.framework for one in ENTRIES} >= {
        "torch",
        "torchvision",
        "timm",
        "transformers",
        "accelerate",
        "peft",
        "lightning",
        "torch-ddp",
        "torch-fsdp",
    }
    assert {"fp32", "fp16-amp", "bf16-amp", "bf16", "nf4"} <= {one.precision for one in ENTRIES}
    assert {"python", "module", "torchrun"} == {one.launcher for one in ENTRIES}
    assert {one.memory_gib for one in ENTRIES} <= {16, 24, 40, 80, 141}


def test_no_file_has_changed_since_the_suite_was_frozen() -> None:
    """A new digest belongs to a new measurement: see benchmarks/sizing_suite."""
    assert suite.digests_now(DOCUMENT) == DOCUMENT["digests"]


def test_every_file_of_the_folder_belongs_to_an_entry() -> None:
    there = {relative(path) for path in suite.FOLDER.rglob("*") if path.suffix in (".py", ".yaml", ".json")}
    assert {name for name in there if "__pycache__" not in name} == {file for one in ENTRIES for file in one.files}


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    document = {"script": [{"file": "a.py"}]}
    before = suite.digests_now(document, tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    assert suite.digests_now(document, tmp_path) != before


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_program_compiles_and_imports_what_its_entry_names(path: Path) -> None:
    entry = next(one for one in ENTRIES if relative(path) in one.files)
    beside = {other.stem for other in path.parent.glob("*.py")}
    # What a notebook has when it runs as one; the exported program does not get there.
    known = set(sys.stdlib_module_names) | set(entry.packages) | beside | {"IPython"}
    assert set(imports(tree_of(path))) <= known
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("entry", {one.file: one for one in ENTRIES}.values(), ids=lambda one: one.file)
def test_every_package_that_an_entry_names_is_used(entry: Any) -> None:
    used = {name for file in entry.files if file.endswith(".py") for name in imports(tree_of(suite.FOLDER / file))}
    # transformers' Trainer wants accelerate, and imports it itself
    assert set(entry.packages) - {"accelerate"} <= used


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_program_reaches_the_network_or_a_hub(path: Path) -> None:
    tree = tree_of(path)
    assert not set(imports(tree)) & NETWORK
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            assert name not in DOWNLOADS
            assert ast.unparse(node) not in ("torch.hub", "torch.hub.load")
        if isinstance(node, ast.keyword) and node.arg in ("pretrained", "download", "weights", "weights_backbone"):
            assert ast.unparse(node.value) in ("None", "False")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r"https?://|s3://|hf://", node.value)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_program_reports_memory_itself(path: Path) -> None:
    assert not MEMORY.search(path.read_text())


@pytest.mark.parametrize("file", sorted({one.file for one in ENTRIES}))
def test_a_program_has_a_size_that_people_write(file: str) -> None:
    entry = next(one for one in ENTRIES if one.file == file)
    assert 30 <= sum(len((suite.FOLDER / name).read_text().splitlines()) for name in entry.files) <= 200


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: one.name)
def test_a_command_line_is_what_the_program_understands(entry: Any) -> None:
    command = shlex.join(entry.command(steps=7))
    text = "".join((suite.FOLDER / file).read_text() for file in entry.files)
    assert "{" not in command
    assert entry.steps <= 16
    assert entry.long >= entry.steps
    if entry.optimizer != "none":
        assert "{steps}" in entry.arguments or "{steps}" in entry.variables.values()
    # TrainingArguments has two hundred options of its own.
    if "HfArgumentParser" not in text and "literal_eval" not in text:
        for option in re.findall(r"(?<= )--?[a-zA-Z][\w-]*", f" {entry.arguments.replace('=', ' ')}"):
            assert f'"{option}"' in text or f'"{option}/' in text or f'/{option}"' in text
    for variable in entry.variables:
        assert f'"{variable}"' in text


def test_entries_differ_in_more_than_their_names() -> None:
    for one, other in itertools.pairwise(sorted(ENTRIES, key=lambda entry: entry.digest)):
        assert one.digest != other.digest


def test_command_lines_are_those_of_the_launcher() -> None:
    by_launcher = {one.launcher: one for one in reversed(ENTRIES)}
    assert by_launcher["python"].command("py")[:2] == ["py", str(by_launcher["python"].script)]
    assert by_launcher["module"].command("py")[:3] == ["py", "-m", "asr.train"]
    assert (by_launcher["module"].folder / "asr" / "train.py").is_file()
    assert "torch.distributed.run" in by_launcher["torchrun"].command("py")


RUN = (
    '{name = "a", arguments = "", category = "cnn", family = "f", precision = "fp32", '
    'optimizer = "sgd", batch = 1, memory_gib = 16}'
)
SCRIPT = '[[script]]\nfile = "a.py"\nframework = "torch"\npackages = ["torch"]\n'
DIGESTS = '\n[digests]\n"a.py" = "00"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "version is None, not 1"),
        ("version = ", "Invalid value"),
        (f"version = 1\n{SCRIPT}runs = [{RUN}]", "a: no digest of a.py"),
        (f"version = 1\n{SCRIPT}runs = [{RUN}, {RUN}]{DIGESTS}", "two entries are called a"),
        (f'version = 1\n{SCRIPT}launcher = "mpirun"\nruns = [{RUN}]{DIGESTS}', "launcher 'mpirun' is none of"),
        (f"version = 1\n{SCRIPT}colour = 3\nruns = [{RUN}]{DIGESTS}", "colour"),
        (f"version = 1\n{SCRIPT}runs = [{{name = 'b'}}]{DIGESTS}", "b: .*category"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "manifest.toml"
    path.write_text(text)
    with pytest.raises(suite.SuiteError, match=message):
        suite.read_suite(path)
