#!/usr/bin/env python3
"""What XTuner's own configurations say about memory → formats/trainers/xtuner_configs.json.

    PYTHONPATH=src scripts/xtuner_configs.py CHECKOUT

`xtuner train NAME` names them where there is no such file. Kept are the settings that the formulas read.
"""

import json
import sys
from pathlib import Path
from typing import Any

from kopt.formats.python_config import read_python_config

TARGET = Path(__file__).resolve().parents[1] / "formats" / "trainers" / "xtuner_configs.json"
SETTINGS = ("max_length", "pack_to_max_length", "sequence_parallel_size")
MODEL = (
    "type",
    "llm",
    "lora",
    "llm_lora",
    "visual_encoder",
    "visual_encoder_lora",
    "model_path",
    "pretrained_model_name_or_path",
    "quantization_config",
    "quantization_llm",
    "freeze_llm",
    "freeze_visual_encoder",
    "use_activation_checkpointing",
)
PART = (
    "pretrained_model_name_or_path",
    "torch_dtype",
    "quantization_config",
    "attn_implementation",
    "load_in_4bit",
    "load_in_8bit",
    "bnb_4bit_use_double_quant",
    "r",
    "lora_dropout",
    "target_modules",
    "modules_to_save",
)


def kept(value: Any) -> Any:
    """The part of a model's mapping that is read."""
    return {name: kept(each) for name, each in value.items() if name in PART} if isinstance(value, dict) else value


def main(checkout: str) -> None:
    configs = {}
    for path in sorted(Path(checkout).glob("xtuner/configs/**/*.py")):
        config = read_python_config(path.read_text(encoding="utf-8"))
        model = config.get("model")
        if not isinstance(model, dict):
            continue
        result = {name: config[name] for name in SETTINGS if name in config}
        result["model"] = {name: kept(model[name]) for name in MODEL if name in model}
        loader, wrapper = config.get("train_dataloader") or {}, config.get("optim_wrapper") or {}
        if "batch_size" in loader:
            result["train_dataloader"] = {"batch_size": loader["batch_size"]}
        optimizer = wrapper.get("optimizer") or {}
        result["optim_wrapper"] = {
            name: wrapper[name] for name in ("type", "dtype", "accumulative_counts") if name in wrapper
        } | {"optimizer": {"type": optimizer.get("type", "AdamW")}}
        configs[path.stem] = result
    # Most differ by their data alone: each set of settings stands once, with the names that have it.
    by_settings: dict[str, list[str]] = {}
    for name, each in configs.items():
        by_settings.setdefault(json.dumps(each, sort_keys=True), []).append(name)
    lines = (f' {{"names": {json.dumps(names)}, "settings": {text}}}' for text, names in by_settings.items())
    TARGET.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{TARGET}: {len(configs)} configurations")


if __name__ == "__main__":
    main(*sys.argv[1:])
