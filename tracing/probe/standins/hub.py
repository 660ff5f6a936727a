"""Pretrained models without their weights: built from their configuration, with fake values."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from . import quantized
from .known_models import configuration

if TYPE_CHECKING:
    from ..session import Session

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
}
_HUB_OPTIONS = (
    "cache_dir",
    "force_download",
    "resume_download",
    "proxies",
    "token",
    "use_auth_token",
    "local_files_only",
    "revision",
    "trust_remote_code",
    "subfolder",
    "code_revision",
    "_from_pipeline",
    "_from_auto",
    "_commit_hash",
    "gguf_file",
    "_configuration_file",
)
_MICRO_BATCHES = 2
_NOTHING_READ = "the configuration is the model's own, its weights are not read"


class NoWeights(dict[str, Any]):
    """A state that was not loaded; any module takes it."""


def install(session: Session) -> None:
    """Patches each library once the script has imported it."""
    os.environ.update(_QUIET)
    after = session.imports.patch
    after("transformers.configuration_utils", lambda module: _configurations(session, module))
    after("transformers.modeling_utils", lambda module: _models(session, module))
    after("transformers.tokenization_utils_base", lambda module: _tokenizers(session, module))
    after("transformers.models.auto.tokenization_auto", lambda module: _auto_tokenizer(session, module))
    after("transformers.trainer", lambda module: _trainer(session, module))
    after("transformers.training_args", lambda module: _accumulation(session, module.TrainingArguments))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        after(f"{package}.trainer.trainer", lambda module: _lightning(session, module.Trainer))
    after("timm.models._builder", lambda module: _timm(session, module))
    after("torchvision.models._api", lambda module: _torchvision(session, module))
    after("safetensors.torch", lambda module: _safetensors(session, module))
    _states(session)


def _states(session: Session) -> None:
    module: Any = torch.nn.Module
    original = module.load_state_dict

    def load(self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, NoWeights):
            from torch.nn.modules.module import _IncompatibleKeys

            return _IncompatibleKeys([], [])
        return original(self, state, *args, **kwargs)

    def from_url(*_: Any, **__: Any) -> NoWeights:
        session.writer.stand_in("pretrained weights", _NOTHING_READ)
        return NoWeights()

    module.load_state_dict = load
    hub: Any = torch.hub
    hub.load_state_dict_from_url = from_url


def _configurations(session: Session, module: Any) -> None:
    base = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
    original = base.get_config_dict.__func__

    def read(cls: Any, /, name: Any, **kwargs: Any) -> Any:
        try:
            result = original(cls, name, **kwargs)
        except (OSError, ValueError) as error:
            settings = configuration(str(name))
            if settings is None:
                raise OSError(
                    f"the configuration of {name!r} is neither in the cache nor known here: "
                    "download its config.json once, or give its folder"
                ) from error
            session.writer.assumption(f"{name} was taken to have its published configuration")
            result = settings, {key: value for key, value in kwargs.items() if key not in _HUB_OPTIONS}
        return result

    base.get_config_dict = classmethod(read)


def _models(session: Session, module: Any) -> None:
    base = module.PreTrainedModel

    def from_pretrained(cls: Any, /, name: Any = None, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        session.writer.stand_in("from_pretrained", _NOTHING_READ)
        quantization = kwargs.pop("quantization_config", None)
        device, dtype = kwargs.pop("device_map", None), kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
        attention = kwargs.pop("attn_implementation", None)
        four, eight = kwargs.pop("load_in_4bit", False), kwargs.pop("load_in_8bit", False)
        config, rest = _config_of(cls, name, config, kwargs)
        dtype_used = _dtype(config, dtype, module)
        options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
        if attention and attention.startswith("flash_attention"):
            options["attn_implementation"] = "sdpa"
        with _default_dtype(dtype_used):
            model = cls._from_config(config, **options)
        if dtype_used is not None:
            model = model.to(dtype_used)
        model.eval()
        model.name_or_path = str(name)
        if quantization is not None or four or eight:
            quantized.replace(session, model, quantization, eight)
        if device is not None:
            model.to(_device(device))
            model.hf_device_map = {"": 0}
        if quantization is not None or four or eight:
            # Only now: the library refuses to move a model that says so.
            model.is_loaded_in_8bit = eight or bool(getattr(quantization, "load_in_8bit", False))
            model.is_loaded_in_4bit = not model.is_loaded_in_8bit
        return (model, {"missing_keys": [], "unexpected_keys": []}) if rest.get("output_loading_info") else model

    base.from_pretrained = classmethod(from_pretrained)
    base.save_pretrained = lambda self, *_, **__: session.writer.stand_in("save_pretrained", "nothing is written")


def _config_of(cls: Any, name: Any, config: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    hub_options = {key: kwargs.pop(key) for key in ("cache_dir", "revision", "token", "subfolder") if key in kwargs}
    for key in (
        "low_cpu_mem_usage",
        "use_safetensors",
        "trust_remote_code",
        "ignore_mismatched_sizes",
        "max_memory",
        "local_files_only",
        "force_download",
        "use_auth_token",
        "offload_folder",
        "state_dict",
        "_fast_init",
        "use_flash_attention_2",
        "variant",
        "key_mapping",
        "weights_only",
        "device",
        "adapter_kwargs",
        "_from_auto",
        "_commit_hash",
        "gguf_file",
        "from_tf",
        "from_flax",
        "tp_plan",
    ):
        kwargs.pop(key, None)
    if config is None:
        config, rest = cls.config_class.from_pretrained(name, return_unused_kwargs=True, **hub_options, **kwargs)
        return config, rest
    for key in [item for item in kwargs if hasattr(config, item)]:
        setattr(config, key, kwargs.pop(key))
    return config, kwargs


def _dtype(config: Any, wanted: Any, module: Any) -> torch.dtype | None:
    """What the library would load in: asked for, or the checkpoint's own from its fifth version on."""
    if wanted is None:
        version: str = import_module("transformers").__version__
        wanted = "auto" if int(version.split(".")[0]) >= 5 else None
    if wanted == "auto":
        wanted = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(wanted, str):
        wanted = getattr(torch, wanted.removeprefix("torch."), None)
    return wanted if isinstance(wanted, torch.dtype) else None


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _device(device: Any) -> torch.device:
    if isinstance(device, dict):
        device = next(iter(device.values()), 0)
    if device in ("auto", "balanced", "balanced_low_0", "sequential"):
        device = 0
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _tokenizers(session: Session, module: Any) -> None:
    base = module.PreTrainedTokenizerBase
    original = base.from_pretrained.__func__

    def read(cls: Any, /, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(cls, name, *args, **kwargs)
        except (OSError, ValueError, TypeError, AttributeError, ImportError):
            return stand_in_tokenizer(session, str(name))

    base.from_pretrained = classmethod(read)


def _auto_tokenizer(session: Session, module: Any) -> None:
    base = module.AutoTokenizer
    original = base.from_pretrained.__func__

    def read(cls: Any, /, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(cls, name, *args, **kwargs)
        except (OSError, ValueError, TypeError, AttributeError, KeyError, ImportError):
            return stand_in_tokenizer(session, str(name))

    base.from_pretrained = classmethod(read)


def stand_in_tokenizer(session: Session, name: str) -> Any:
    """A byte-level tokenizer with the usual special tokens, at the size of the model's vocabulary or below."""
    tokenizers: Any = import_module("tokenizers")
    decoders, models, pre_tokenizers = tokenizers.decoders, tokenizers.models, tokenizers.pre_tokenizers
    session.writer.stand_in(f"tokenizer of {name}", "not in the cache: one token per byte, so texts become longer")
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "<sep>", "<cls>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *letters])}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        sep_token="<sep>",
        cls_token="<cls>",
        model_max_length=_longest(name),
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    return tokenizer


def _longest(name: str) -> int:
    settings = configuration(name) or {}
    return int(settings.get("max_position_embeddings") or settings.get("n_positions") or 1024)


def _trainer(session: Session, module: Any) -> None:
    trainer = module.Trainer
    for name in ("_save_checkpoint", "save_model", "save_state", "_save", "push_to_hub", "create_model_card"):
        if hasattr(trainer, name):
            setattr(trainer, name, lambda self, *_, **__: session.writer.stand_in("checkpoints", "nothing is written"))


def _accumulation(session: Session, arguments: Any) -> None:
    """Two micro-batches show all that many do: the first without gradients, the second with."""
    original = arguments.__post_init__

    def checked(self: Any) -> None:
        original(self)
        if self.gradient_accumulation_steps > _MICRO_BATCHES:
            session.writer.assumption(f"{self.gradient_accumulation_steps} accumulated batches were followed as two")
            self.gradient_accumulation_steps = _MICRO_BATCHES

    arguments.__post_init__ = checked


def _lightning(session: Session, trainer: Any) -> None:
    original = trainer.__init__

    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        count = kwargs.get("accumulate_grad_batches", 1)
        if isinstance(count, int) and count > _MICRO_BATCHES:
            session.writer.assumption(f"{count} accumulated batches were followed as two")
            kwargs["accumulate_grad_batches"] = _MICRO_BATCHES
        original(self, *args, **kwargs)

    trainer.__init__ = create


def _timm(session: Session, module: Any) -> None:
    def load(*_: Any, **__: Any) -> None:
        session.writer.stand_in("pretrained weights", _NOTHING_READ)

    module.load_pretrained = load


def _torchvision(session: Session, module: Any) -> None:
    def state(self: Any, *_: Any, **__: Any) -> NoWeights:
        session.writer.stand_in("pretrained weights", _NOTHING_READ)
        return NoWeights()

    module.WeightsEnum.get_state_dict = state


def _safetensors(session: Session, module: Any) -> None:
    def save(*_: Any, **__: Any) -> None:
        session.writer.stand_in("safetensors", "nothing is written while a script is only sized")

    module.save_file = module.save_model = save
