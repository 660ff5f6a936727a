#!/usr/bin/env python3
"""What torchtune's own configurations say about memory → formats/trainers/torchtune_configs.json.

    scripts/torchtune_configs.py torchtune-0.6.1-py3-none-any.whl

`tune run RECIPE --config NAME` names them where there is no such file. Kept are the settings that the formulas read.
"""

import json
import sys
import zipfile
from pathlib import Path

import yaml

TARGET = Path(__file__).resolve().parents[1] / "formats" / "trainers" / "torchtune_configs.json"
FOLDER, SUFFIX = "recipes/configs/", ".yaml"
SETTINGS = (
    "batch_size",
    "gradient_accumulation_steps",
    "dtype",
    "compile",
    "enable_activation_checkpointing",
    "enable_activation_offloading",
    "optimizer_in_bwd",
    "fsdp_cpu_offload",
)
MEMBERS = {
    "model": ("_component_", "lora_rank", "lora_attn_modules", "apply_lora_to_mlp"),
    "tokenizer": ("max_seq_len",),
    "dataset": ("packed",),
    "optimizer": ("_component_", "fused"),
    "loss": ("_component_",),
}


def main(wheel: str) -> None:
    configs = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(archive.namelist()):
            if not (path.startswith(FOLDER) and path.endswith(SUFFIX)):
                continue
            config = yaml.safe_load(archive.read(path))
            if "optimizer" not in config or "model" not in config:
                continue
            kept = {name: config[name] for name in SETTINGS if name in config}
            for name, members in MEMBERS.items():
                value = config.get(name)
                if isinstance(value, dict):
                    kept[name] = {member: value[member] for member in members if member in value}
            configs[path.removeprefix(FOLDER).removesuffix(SUFFIX)] = kept
    lines = (f" {json.dumps(name)}: {json.dumps(kept, sort_keys=True)}" for name, kept in configs.items())
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{TARGET}: {len(configs)} configurations")


if __name__ == "__main__":
    main(*sys.argv[1:])
