"""Data that is missing: small stand-ins of the shape that the script expects."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from .guarded import ABSENT, expected

if TYPE_CHECKING:
    from ..session import Session

_SAMPLES = 2048
_ROWS = 256
_TOKENS = 1 << 22
# Class: (width and height, mode, classes).
_IMAGES = {
    "CIFAR10": (32, "RGB", 10),
    "CIFAR100": (32, "RGB", 100),
    "MNIST": (28, "L", 10),
    "FashionMNIST": (28, "L", 10),
    "KMNIST": (28, "L", 10),
    "QMNIST": (28, "L", 10),
    "SVHN": (32, "RGB", 10),
    "STL10": (96, "RGB", 10),
    "ImageFolder": (500, "RGB", 1000),
    "ImageNet": (500, "RGB", 1000),
    "Flowers102": (500, "RGB", 102),
    "Food101": (500, "RGB", 101),
    "OxfordIIITPet": (500, "RGB", 37),
    "StanfordCars": (500, "RGB", 196),
    "CelebA": (218, "RGB", 2),
    "EuroSAT": (64, "RGB", 10),
}
_SENTENCE = "The quick brown fox jumps over the lazy dog while the committee reads its report once more. "
_TEXT = _SENTENCE * 40
_COLUMNS: dict[str, dict[str, Any]] = {
    "wikitext": {"text": _TEXT},
    "openwebtext": {"text": _TEXT},
    "c4": {"text": _TEXT},
    "fineweb": {"text": _TEXT},
    "imdb": {"text": _TEXT, "label": 1},
    "ag_news": {"text": _SENTENCE * 3, "label": 1},
    "yelp": {"text": _TEXT, "label": 1},
    "emotion": {"text": _SENTENCE, "label": 1},
    "sst2": {"sentence": _SENTENCE, "label": 1, "idx": 0},
    # Scripts drop the columns that they know, and what is left must be numbers.
    **{
        f"glue/{subset}": {"sentence1": _SENTENCE, "sentence2": _SENTENCE, "label": 1, "idx": 0}
        for subset in ("mrpc", "rte", "stsb", "wnli")
    },
    "glue/cola": {"sentence": _SENTENCE, "label": 1, "idx": 0},
    "glue/qqp": {"question1": _SENTENCE, "question2": _SENTENCE, "label": 1, "idx": 0},
    "glue/qnli": {"question": _SENTENCE, "sentence": _SENTENCE, "label": 1, "idx": 0},
    "glue": {"sentence1": _SENTENCE, "sentence2": _SENTENCE, "sentence": _SENTENCE, "label": 1, "idx": 0},
    "alpaca": {"instruction": _SENTENCE, "input": _SENTENCE, "output": _SENTENCE * 5, "text": _SENTENCE * 8},
    "dolly": {"instruction": _SENTENCE, "context": _SENTENCE, "response": _SENTENCE * 5, "category": "qa"},
    "guanaco": {"text": _TEXT},
    "squad": {
        "id": "0",
        "context": _SENTENCE * 8,
        "question": _SENTENCE,
        "answers": {"text": ["quick"], "answer_start": [4]},
    },
    "quotes": {"quote": _SENTENCE, "author": "anonymous", "tags": ["one"]},
    "samsum": {"dialogue": _SENTENCE * 6, "summary": _SENTENCE},
    "cnn_dailymail": {"article": _TEXT, "highlights": _SENTENCE * 3},
    "xsum": {"document": _TEXT, "summary": _SENTENCE},
    "gsm8k": {"question": _SENTENCE, "answer": _SENTENCE * 3},
    "ultrachat": {"messages": [{"role": "user", "content": _SENTENCE}, {"role": "assistant", "content": _TEXT}]},
}


def install(session: Session) -> None:
    """Patches torchvision's data sets and ``datasets.load_dataset`` once they are imported."""
    session.imports.patch("torchvision.datasets", lambda module: _torchvision(session, module))
    session.imports.patch("numpy", lambda module: _token_files(session, module))
    session.imports.patch("datasets.load", lambda module: _load_dataset(session, module))
    session.imports.patch("timm.data.dataset_factory", lambda module: _timm(session, module))
    session.imports.patch("evaluate.loading", lambda module: _metrics(session, module))


def _torchvision(session: Session, module: Any) -> None:
    for name, attributes in _IMAGES.items():
        if hasattr(module, name):
            _wrap(session, getattr(module, name), *attributes)
    if hasattr(module, "FakeData"):
        # Its images are drawn at full size for each sample; the values do not matter.
        module.FakeData.__getitem__ = _fake_data


def _token_files(session: Session, module: Any) -> None:
    """``np.memmap`` of a file of tokens, as language models are trained from."""
    original: Any = module.memmap

    class Memmap(original):  # type: ignore[misc]
        def __new__(cls, filename: Any, dtype: Any = module.uint8, mode: Any = "r+", *args: Any, **kwargs: Any) -> Any:
            try:
                return original.__new__(original, filename, dtype, mode, *args, **kwargs)
            except FileNotFoundError:
                if mode not in ("r", "r+", "c", "readonly", "copyonwrite") or expected(ABSENT):
                    raise
                session.writer.stand_in(f"np.memmap of {os.fspath(filename)}", f"not there: {_TOKENS:,} zeros")
                shape = kwargs.get("shape") or (args[1] if len(args) > 1 else None) or _TOKENS
                return module.zeros(shape, dtype)

    module.memmap = Memmap


def _fake_data(self: Any, index: int) -> Any:
    from PIL import Image

    channels, height, width = self.image_size
    image: Any = Image.new("RGB" if channels == 3 else "L", (width, height))
    label: Any = index % self.num_classes
    if self.transform is not None:
        image = self.transform(image)
    return image, self.target_transform(label) if self.target_transform is not None else label


def _wrap(session: Session, kind: Any, size: int, mode: str, classes: int) -> None:
    original = kind.__init__

    def create(self: Any, root: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, root, *args, **{**kwargs, **({"download": False} if "download" in kwargs else {})})
        except (OSError, RuntimeError) as error:
            if type(self).__init__ is not create:
                raise
            session.stands_in_for_data = True
            session.writer.stand_in(f"data set {kind.__name__}", f"not there ({type(error).__name__}): blank images")
            _become_blank(self, kind, size, mode, classes, args, kwargs)

    kind.__init__ = create


def _timm(session: Session, module: Any) -> None:
    """timm's ``create_dataset`` for a folder, an archive or a name; its loader sets the transform afterwards."""
    original = module.create_dataset

    def create(name: str, root: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(name, root, *args, **{**kwargs, "download": False})
        except (AssertionError, ImportError, OSError, RuntimeError) as error:
            session.stands_in_for_data = True
            label = f"data set {name or root}"
            session.writer.stand_in(label, f"not there ({type(error).__name__}): blank images")
            return _TimmImages()

    module.create_dataset = create
    patched: Any = import_module("timm.data")
    patched.create_dataset = create


def _become_blank(self: Any, kind: Any, size: int, mode: str, classes: int, args: Any, kwargs: dict[str, Any]) -> None:
    import numpy as np

    functions = [arg for arg in args if callable(arg)]
    self.transform = kwargs.get("transform", functions[0] if functions else None)
    self.target_transform = kwargs.get("target_transform")
    self.transforms = None
    self.root, self.loader = kwargs.get("root", ""), None
    self.classes = [str(number) for number in range(classes)]
    with contextlib.suppress(AttributeError):  # MNIST computes it
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
    self.targets = self.labels = [number % classes for number in range(_SAMPLES)]
    self.samples = self.imgs = [("", label) for label in self.targets]
    shape = (_SAMPLES, size, size, 3) if mode == "RGB" else (_SAMPLES, size, size)
    if size <= 96:
        self.data = np.zeros(shape, dtype=np.uint8)
    if mode == "L":  # the family of MNIST keeps tensors
        self.data, self.targets = torch.zeros(shape, dtype=torch.uint8), torch.tensor(self.targets)
    self._blank = (size, mode)
    self.__class__ = type(kind.__name__, (kind,), {"__len__": _Blank.__len__, "__getitem__": _Blank.__getitem__})


class _Blank:
    """Blank images with labels in turn."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        this: Any = self
        size, mode = this._blank
        image: Any = Image.new(mode, (size, size))
        label = this.targets[int(index) % _SAMPLES]
        if this.transform is not None:
            image = this.transform(image)
        return image, this.target_transform(label) if this.target_transform is not None else label


class _TimmImages(_Blank):
    """Of a photograph's size; timm's loader sets the transform."""

    def __init__(self) -> None:
        self.transform = self.target_transform = None
        self.targets = [number % 1000 for number in range(_SAMPLES)]
        self._blank = (500, "RGB")

    def filename(self, index: int, *_: Any, **__: Any) -> str:
        return f"{index}.jpg"


def _load_dataset(session: Session, module: Any) -> None:
    original = module.load_dataset

    def load(path: str, name: Any = None, *args: Any, split: Any = None, **kwargs: Any) -> Any:
        try:
            return original(path, name, *args, split=split, **kwargs)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            if path in ("json", "csv", "parquet", "text", "arrow"):
                raise
            session.stands_in_for_data = True
            session.writer.stand_in(
                f"data set {path}", f"not there ({type(error).__name__}): {_ROWS} rows like its own"
            )
            return _rows(path, name, split)

    module.load_dataset = load
    patched: Any = import_module("datasets")
    patched.load_dataset = load


def _rows(path: str, name: Any, split: Any) -> Any:
    datasets: Any = import_module("datasets")
    label = f"{path}/{name or ''}".lower()
    columns = next((row for key, row in _COLUMNS.items() if key in label), {"text": _TEXT})
    table = {key: [value] * _ROWS for key, value in columns.items()}
    if split is None:
        return datasets.DatasetDict(
            {part: datasets.Dataset.from_dict(table) for part in ("train", "validation", "test")}
        )
    if isinstance(split, (list, tuple)):
        return [datasets.Dataset.from_dict(table) for _ in split]
    return datasets.Dataset.from_dict(table)


class Metric:
    """A metric that cannot be fetched: takes what it is given, and every one of its figures is 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def compute(self, *_: Any, **__: Any) -> dict[str, float]:
        return defaultdict(float)


def _metrics(session: Session, module: Any) -> None:
    load = module.load

    def loaded(path: Any, *args: Any, **options: Any) -> Any:
        try:
            return load(path, *args, **options)
        except OSError:
            session.writer.stand_in(f"evaluate.load({str(path)[:80]!r})", "the metric is not there")
            return Metric()

    module.load = loaded
