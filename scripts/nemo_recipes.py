#!/usr/bin/env python3
"""What NeMo's recipes say about memory → formats/trainers/nemo/recipes.json.

    PYTHONPATH=src scripts/nemo_recipes.py CHECKOUT

`nemo llm pretrain --factory NAME` names them. Recipes are functions of a checkout that its user trusts: they are called
here, with everything that they import replaced by objects that keep what they are given. The product never does so.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "formats" / "trainers" / "nemo" / "recipes.json"
RECIPES = "nemo.collections.llm.recipes"
REPLACED = {"nemo", "nemo_run", "torch", "lightning", "megatron", "pytorch_lightning", "transformers", "omegaconf"}
CALLS = {
    "pretrain": ("pretrain_recipe", {}),
    "lora": ("finetune_recipe", {}),
    "full": ("finetune_recipe", {"peft_scheme": None}),
}
STRATEGY = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "fsdp",
)
MODEL = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "mtp_num_layers",
    "cross_entropy_loss_fusion",
    "seq_length",
)
DATA = ("seq_length", "micro_batch_size", "global_batch_size")
TRAINER = ("devices", "num_nodes")


class Kept:
    """What a configuration was given and what was set on it."""

    def __init__(self, made_of: Any = None, *_: Any, **values: Any) -> None:
        self.__dict__["made_of"] = getattr(made_of, "kept_name", getattr(made_of, "__name__", ""))
        self.__dict__["values"] = values

    def __class_getitem__(cls, _: Any) -> type:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.values.setdefault(name, Kept())

    def __setattr__(self, name: str, value: Any) -> None:
        self.values[name] = value

    def of(self, *names: str) -> dict[str, Any]:
        return {name: plain(self.values[name]) for name in names if plain(self.values.get(name)) is not None}


def plain(value: Any) -> Any:
    known = isinstance(value, str | int | float | bool) or (isinstance(value, list) and all(map(plain, value)))
    return value if known else None


class Name:
    """Anything that is imported: it can be called, indexed and asked for members."""

    def __init__(self, name: str) -> None:
        self.kept_name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return decorator if name in ("factory", "autoconvert") else Name(name)

    def __call__(self, *_: Any, **values: Any) -> Kept:
        return Kept(self, **values)

    def __getitem__(self, _: Any) -> "Name":
        return self

    def __or__(self, _: Any) -> "Name":
        return self

    __ror__ = __or__


def decorator(*arguments: Any, **options: Any) -> Any:
    return arguments[0] if arguments and callable(arguments[0]) and not options else lambda function: function


class Replaced(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "nemo_run" and name in ("Config", "Partial"):
            return Kept
        return decorator if name in ("factory", "autoconvert") else Name(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] not in REPLACED:
            return None
        place = self.checkout.joinpath(*name.split("."))
        if name.startswith(f"{RECIPES}."):
            folder = place.is_dir()
            file = place / "__init__.py" if folder else place.with_suffix(".py")
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=[str(place)] if folder else None
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return Replaced(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def part(recipe: Kept, *names: str) -> Kept:
    for name in names:
        value = recipe.values.get(name)
        recipe = value if isinstance(value, Kept) else Kept()
    return recipe


def settings(recipe: Kept) -> dict[str, Any]:
    result = part(recipe, "model", "config").of(*MODEL) | part(recipe, "trainer", "strategy").of(*STRATEGY)
    result |= part(recipe, "data").of(*DATA) | part(recipe, "trainer").of(*TRAINER)
    result |= part(recipe, "optim", "config").of("optimizer", "use_distributed_optimizer")
    result |= part(recipe, "trainer", "plugins").of("precision", "grad_reduce_in_fp32")
    if "peft" in recipe.values:
        result["peft"] = part(recipe, "peft").of("dim", "target_modules")
    return result


def model_of(recipe: Kept) -> str:
    """The repository on the hub whose weights are tuned, else the class of the dimensions."""
    path = part(recipe, "resume", "restore_config").values.get("path")
    if isinstance(path, str) and path.startswith("nemo://"):
        return path.removeprefix("nemo://")
    return str(part(recipe, "model", "config").made_of)


def main(checkout: str) -> None:
    root = Path(checkout)
    sys.meta_path.insert(0, Finder(root))
    result: dict[str, dict[str, Any]] = {}
    for path in sorted(root.joinpath(*RECIPES.split(".")).glob("*.py")):
        module = importlib.import_module(f"{RECIPES}.{path.stem}") if path.stem != "__init__" else None
        if module is None or "NAME" not in vars(module):
            continue
        made = {}
        for kind, (function, keywords) in CALLS.items():
            try:
                made[kind] = getattr(module, function)(**keywords)
            except (AttributeError, TypeError, AssertionError, NotImplementedError, ValueError) as error:
                print(f"{path.stem}, {kind}: {error!r}"[:150], file=sys.stderr)
        if made:
            names = [model_of(recipe) for recipe in made.values()]
            result[path.stem] = {"model": max(names, key=lambda name: "/" in name)}
            result[path.stem] |= {kind: settings(recipe) for kind, recipe in made.items()}
    lines = (f" {json.dumps(name)}: {json.dumps(each, sort_keys=True)}" for name, each in result.items())
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{TARGET}: {len(result)} recipes")


if __name__ == "__main__":
    main(*sys.argv[1:])
