"""Lines made up from phrases: what programs could say, in many words, styles and languages.

Labelled logs are few, and a job's trainer is seldom among them. A line is a phrase with its slots filled, dressed as
loggers, launchers and progress bars dress their messages. ``phrases.toml`` holds the phrases; paths,
numbers and bars are made here.
"""

import random
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from kopt.core.workload.checkpoint import LineLabel

_EXTENSIONS = ("pt", "pth", "ckpt", "bin", "safetensors", "h5", "hdf5", "pkl", "npz", "keras", "tar", "t7", "index", "")
_FOLDERS = (
    "/checkpoints",
    "./output",
    "runs/exp",
    "/mnt/data/out",
    "results",
    "experiments",
    "/workspace/ckpt",
    "logs",
    "saves",
    "outputs/2024-05-01",
    "/tmp/model",
    "gs://bucket/run",
    "s3://bucket/models",
    "C:\\models\\run",
    "weights",
    "./checkpoint",
    "lightning_logs/version_0/checkpoints",
    "/data/user/train",
    "work_dirs/cfg",
    "models",
)
_FILES = (
    "checkpoint-{i}",
    "checkpoint_{i}",
    "model",
    "model_{i}",
    "epoch_{i}",
    "step-{i}",
    "global_step{i}",
    "iter_{i}",
    "best",
    "last",
    "latest",
    "best_model",
    "pytorch_model",
    "model-0000{i}-of-00008",
    "state_{i}",
    "weights.{i}",
    "ckpt_{i}",
    "snapshot_{i}",
    "optimizer",
    "mp_rank_0{i}_model_states",
    "final",
    "adapter_model",
    "net_G_{i}",
    "checkpoint_best",
    "checkpoint_last",
    "epoch={i}-step={i}",
    "{i}",
    "rl_model_{i}_steps",
    "model.ckpt-{i}",
)
_LEVELS = ("INFO", "info", "I", "WARNING", "DEBUG", "    INFO", "INFO ")
_LOGGERS = (
    "__main__",
    "root",
    "train",
    "trainer",
    "utils.logger",
    "engine.trainer",
    "absl",
    "lightning.pytorch",
    "accelerate",
    "run",
    "main",
    "core.loop",
    "absl-py",
    "hydra",
    "worker",
    "app.train",
    "project.module.file",
    "tensorflow",
)
_BARS = ("█", "#", "=", "━", "╸", "-", "▇")


def _step(rng: random.Random) -> str:
    return str(int(10 ** rng.uniform(0, 6.5)))


def _loss(rng: random.Random) -> str:
    return rng.choice(("{:.3f}", "{:.4f}", "{:.2f}", "{:.6f}", "{:.3e}")).format(10 ** rng.uniform(-3, 1.3))


def _clock(rng: random.Random) -> str:
    hours = rng.choice(("", "", f"{rng.randrange(30)}:"))
    return f"{hours}{rng.randrange(60):02d}:{rng.randrange(60):02d}"


def _path(rng: random.Random) -> str:
    name = rng.choice(_FILES).replace("{i}", _step(rng))
    ending = rng.choice(_EXTENSIONS)
    quote = rng.choice(("", "", "", "'", '"', "`"))
    folder = rng.choice(_FOLDERS) + rng.choice(("", "", f"/{_word(rng)}", f"_{_word(rng)}/{_word(rng)}"))
    return f"{quote}{folder}/{name}{'.' + ending if ending else ''}{quote}"


@cache
def _file() -> dict[str, dict[str, list[str]]]:
    text = files("kopt.data.joblogs").joinpath("phrases.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _neutral(rng: random.Random) -> str:
    return rng.choice(_file()["words"]["neutral"])


def _word(rng: random.Random) -> str:
    word = _neutral(rng)
    return rng.choice((word, word, word.capitalize(), f"{word}_{_neutral(rng)}", word.upper()))


def _size(rng: random.Random) -> str:
    return f"{10 ** rng.uniform(0, 3):.2f} {rng.choice(('GB', 'GiB', 'MB', 'MiB', 'KB'))}"


def _bar(rng: random.Random, unit: str = "it/s") -> str:
    """A progress bar as tqdm, rich and Keras draw it."""
    total = int(10 ** rng.uniform(0.3, 5))
    done = rng.randrange(total + 1)
    glyph = rng.choice(_BARS)
    drawn = (glyph * (10 * done // total)).ljust(10)
    rate = "?" if not done else f"{10 ** rng.uniform(-1, 2):.2f}"
    rest = f"{done}/{total} [{_clock(rng)}<{_clock(rng)}, {rate:>5}{rng.choice((unit, unit, 's/' + unit[:2]))}]"
    return rng.choice((f"{100 * done // total:3d}%|{drawn}| {rest}", f"{drawn} {done}/{total} {_clock(rng)} • {rest}"))


def _keras_bar(rng: random.Random) -> str:
    total = rng.randrange(10, 2000)
    done = rng.choice((total, rng.randrange(total)))
    equal = 30 * done // total
    drawn = rng.choice(("=" * equal + ">" + "." * (29 - equal), "━" * max(1, equal)))
    return f"{done}/{total} [{drawn}] - {rng.choice(('ETA: ', ''))}{rng.randrange(900)}s {rng.randrange(900)}ms/step"


def _metrics(rng: random.Random, names: tuple[str, ...]) -> str:
    equals = rng.choice((": ", "=", " = ", " ", ":"))
    between = rng.choice((", ", " ", " | ", "  ", "\t", " - "))
    selected = rng.sample(names, rng.randrange(1, 6))
    return between.join(f"{name}{equals}{rng.choice((_loss, _loss, _step))(rng)}" for name in selected)


def _keras_metrics(rng: random.Random) -> str:
    return " - ".join(f"{n}: {_loss(rng)}" for n in rng.sample(("loss", "accuracy", "mae", "acc", "lr"), 2))


_MAKERS: Mapping[str, Callable[[random.Random], str]] = {
    "i": lambda rng: str(rng.randrange(1, 100)),
    "step": _step,
    "loss": _loss,
    "sci": lambda rng: f"{10 ** rng.uniform(-7, -1):.{rng.randrange(1, 7)}e}",
    "t": lambda rng: f"{10 ** rng.uniform(-2, 3.5):.{rng.randrange(0, 5)}f}",
    "clock": _clock,
    "date": lambda rng: f"20{rng.randrange(18, 27)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
    "path": _path,
    "file": lambda rng: _path(rng).rsplit("/", 1)[-1].strip("'\"`"),
    "pyfile": lambda rng: f"/usr/lib/python3/{_word(rng)}/{_word(rng).lower()}.py",
    "url": lambda rng: f"https://{_neutral(rng)}.example/{_word(rng)}/{_step(rng)}",
    "word": _word,
    "size": _size,
    "bar": _bar,
    "kbar": _keras_bar,
    "kvc": _keras_metrics,
}

_Maker = Callable[[random.Random], str]
_PIECES = re.compile(r"\\(.)|\{(\w+)\}|([(|)])|([^\\{(|)]+|.)", re.DOTALL)


class Phrases:
    """The compiled phrases of ``phrases.toml``."""

    def __init__(self, vocabulary: Mapping[str, list[str]], labels: Mapping[str, list[str]]) -> None:
        self._vocabulary = vocabulary
        self._tmetrics = tuple(vocabulary["tmetric"])
        self._labels = {LineLabel(name): [self._compile(text) for text in phrases] for name, phrases in labels.items()}

    def render(self, label: LineLabel, rng: random.Random) -> str:
        """One undressed message of this meaning."""
        phrase = rng.choice(self._labels[label])(rng)
        return phrase.lower() if rng.random() < 0.08 else phrase

    def fill(self, name: str, rng: random.Random) -> str:
        """What one slot takes."""
        return self._slot(name)(rng)

    def _slot(self, name: str) -> _Maker:
        if name == "kv":
            return lambda rng: _metrics(rng, self._tmetrics)
        if name == "bar_u":
            return lambda rng: _bar(rng, rng.choice(self._vocabulary["unit_data"]))
        if name in _MAKERS:
            return _MAKERS[name]
        alternatives = [self._compile(text) for text in self._vocabulary[name]]
        return lambda rng: rng.choice(alternatives)(rng)

    def _compile(self, text: str) -> _Maker:
        """``Saving {ckpt}(|...)`` → a function that says it; the grammar is that of ``phrases.toml``'s head."""
        pieces = list(_PIECES.finditer(text))
        maker, rest = self._alternatives(pieces, 0, inner=False)
        if rest != len(pieces):
            raise ValueError(f"a bracket too many in the phrase {text!r}")
        return maker

    def _alternatives(self, pieces: list[re.Match[str]], at: int, *, inner: bool) -> tuple[_Maker, int]:
        choices: list[list[_Maker]] = [[]]
        while at < len(pieces):
            escaped, slot, marker, plain = pieces[at].groups()
            at += 1
            if marker == "(":
                nested, at = self._alternatives(pieces, at, inner=True)
                choices[-1].append(nested)
            elif marker == "|" and inner:
                choices.append([])
            elif marker == ")" and inner:
                return _either(choices), at
            else:
                choices[-1].append(self._slot(slot) if slot else _literal(escaped or marker or plain))
        if inner:
            raise ValueError("a phrase's bracket is never closed")
        return _either(choices), at


def _literal(text: str) -> _Maker:
    return lambda rng: text


def _either(choices: list[list[_Maker]]) -> _Maker:
    if len(choices) == 1:
        parts = choices[0]
        return lambda rng: "".join(part(rng) for part in parts)
    return lambda rng: "".join(part(rng) for part in rng.choice(choices))


@cache
def phrases() -> Phrases:
    """The shipped phrases."""
    return Phrases(_file()["words"], _file()["labels"])


def dressed(message: str, label: LineLabel, rng: random.Random) -> str:
    """The message as a program prints it: level, logger, place in the code; now and then behind a bar."""
    style = rng.random()
    level, logger = rng.choice(_LEVELS), rng.choice(_LOGGERS)
    if style < 0.45:
        line = message
    elif style < 0.6:
        line = f"{level}:{logger}:{message}"
    elif style < 0.7:
        line = f"[{level}] [{logger}.{_neutral(rng)}:{rng.randrange(9000)}] {message}"
    elif style < 0.8:
        line = f" - {logger} - {level} - {message}"
    elif style < 0.87:
        line = f"{level} {_neutral(rng)}.py:{rng.randrange(3000)}] {message}"
    elif style < 0.93:
        line = f"| {level} | {logger} | {message}"
    else:
        line = f"[{rng.choice((logger, _word(rng), 'Rank ' + str(rng.randrange(8))))}] {message}"
    behind_bar = label in (LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END, LineLabel.EVAL)
    if behind_bar and rng.random() < 0.12:
        line = rng.choice((_bar, _keras_bar))(rng) + rng.choice(("", " ", ", loss=0.1")) + line
    return line
