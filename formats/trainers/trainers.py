"""The trainers and servers whose memory is computed from arguments and files: a new one is its module and a line here.

Where options alone tell a trainer, the first that recognises them has the command.
"""

from collections.abc import Collection

from kopt.formats.trainers import (
    deepspeed,
    finetuning,
    fsdp_qlora,
    litgpt,
    llama_cookbook,
    nanotron,
    serving,
    sharded_pretraining,
    torchtitan,
    torchtune,
    xtuner,
)
from kopt.formats.trainers import transformers as hf
from kopt.formats.trainers.megatron import gpt_neox
from kopt.formats.trainers.megatron import swift as megatron_swift
from kopt.formats.trainers.megatron import trainer as megatron
from kopt.formats.trainers.nemo import trainer as nemo
from kopt.formats.trainers.pretraining import lingua, lit_llama, nanochat
from kopt.formats.trainers.reinforced import deepspeed_chat, openrlhf, verl
from kopt.formats.trainers.trainer import Trainer

TRAINERS: tuple[Trainer, ...] = (
    nemo.TRAINER,
    megatron.TRAINER,
    megatron_swift.TRAINER,
    deepspeed_chat.TRAINER,
    deepspeed.TRAINER,
    torchtune.TRAINER,
    torchtitan.TRAINER,
    litgpt.TRAINER,
    openrlhf.TRAINER,
    verl.TRAINER,
    finetuning.LLAMAFACTORY,
    finetuning.AXOLOTL,
    finetuning.SWIFT,
    fsdp_qlora.TRAINER,
    gpt_neox.TRAINER,
    xtuner.TRAINER,
    nanotron.TRAINER,
    nanochat.TRAINER,
    lingua.TRAINER,
    lit_llama.TRAINER,
    sharded_pretraining.OLMO,
    sharded_pretraining.FOUNDRY,
    llama_cookbook.TRAINER,
    hf.TRAINER,
    serving.VLLM,
    serving.SGLANG,
    serving.TGI,
)


def trainer_of(name: str | None) -> Trainer | None:
    """The trainer of a name."""
    return next((trainer for trainer in TRAINERS if trainer.name == name), None)


def importing(packages: Collection[str]) -> str | None:
    """The name of the trainer whose package a script imports."""
    return next((trainer.name for trainer in TRAINERS if not set(packages).isdisjoint(trainer.packages)), None)
