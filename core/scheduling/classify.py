"""Which class a workload has (K20): what its owner states, else what the first matching rule of the table says."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.scheduling.workload_class import ClassRule, ClassTable, ClassTraits, WorkloadClass

_SEPARATORS = re.compile(r"[/:@._-]+")


@dataclass(frozen=True, slots=True)
class ClassSigns:
    """What classes are inferred from. ``stated``: the value of ``kaiwo.ai/class``, empty for none.

    ``kinds`` are those of the object and of its owners as GROUP/KIND, the nearest first. ``commands`` are names of
    programs, without their folders; ``ports`` are numbers and names.
    """

    stated: str = ""
    kinds: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    terminal: bool = False
    answers: bool = False
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Classified:
    """A class, what follows from it, and why it is this one."""

    workload_class: WorkloadClass
    traits: ClassTraits
    reasons: tuple[Reason, ...]

    @property
    def why(self) -> str:
        return " ".join(reason.message for reason in self.reasons)


def preemption_bar(name: str, classified: Classified) -> Reason | None:
    """Why a workload is never selected as a victim; None where its class may be."""
    if classified.traits.preemptible:
        return None
    text = (
        f"{name} is {classified.workload_class} ({classified.why.rstrip('.')}), which is not selected as a victim; "
        "state another class in kaiwo.ai/class to change that."
    )
    return Reason("CLASS_NOT_PREEMPTIBLE", text, {"class": str(classified.workload_class)})


@functools.lru_cache(maxsize=2048)
def classify(signs: ClassSigns, table: ClassTable) -> Classified:
    """Total: whatever the signs are, there is one class. What states a class has that one, whatever else holds."""
    reasons: list[Reason] = []
    if signs.stated:
        stated = table.named(signs.stated)
        if stated is not None:
            return _classified(table, stated, Reason("CLASS_STATED", f"kaiwo.ai/class says {signs.stated}."))
        nearest = table.nearest(signs.stated)
        hint = f"; did you mean {nearest}" if nearest else f"; there are {', '.join(WorkloadClass)}"
        reasons.append(Reason("CLASS_UNKNOWN", f"kaiwo.ai/class says {signs.stated!r}, which is no class{hint}?"))
    for rule in table.rules:
        if (why := _holds(rule, signs)) is not None:
            return _classified(table, rule.workload_class, *reasons, Reason(f"CLASS_{rule.code}", why))
    why = "Nothing says otherwise, so it is expected to run to its end by itself."
    return _classified(table, WorkloadClass.UNATTENDED, *reasons, Reason("CLASS_DEFAULT", why))


def _classified(table: ClassTable, workload_class: WorkloadClass, *reasons: Reason) -> Classified:
    return Classified(workload_class, table.of(workload_class), reasons)


def _holds(rule: ClassRule, signs: ClassSigns) -> str | None:
    """Why a rule holds; None where one of its conditions does not."""
    if not rule.unless_owned_by.isdisjoint(signs.kinds):
        return None
    sentences = []
    for condition in _CONDITIONS:
        sentence = condition(rule, signs)
        if sentence is None:
            return None
        sentences.append(sentence)
    return " ".join(filter(None, sentences))


def _kind(rule: ClassRule, signs: ClassSigns) -> str | None:
    if not rule.kinds:
        return ""
    # The farthest owner is what a person has made.
    match = next((kind for kind in reversed(signs.kinds) if kind in rule.kinds), None)
    if match is None:
        return None
    verb = "It is" if match == signs.kinds[0] else "It belongs to"
    return f"{verb} a {match.rpartition('/')[2]}."


def _image(rule: ClassRule, signs: ClassSigns) -> str | None:
    if not rule.images:
        return ""
    match = next((image for image in signs.images if _names_any(image, rule.images)), None)
    return None if match is None else f"Its image is {match}."


def _names_any(image: str, names: frozenset[str]) -> bool:
    """Whether a word stands between separators of an image's repository, without the registry and the tag."""
    repository = image.partition("@")[0]
    head, slash, rest = repository.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        repository = rest
    repository = repository.partition(":")[0].lower()
    padded = "/" + "/".join(_SEPARATORS.split(repository)) + "/"
    return any("/" + "/".join(_SEPARATORS.split(word.lower())) + "/" in padded for word in names)


def _command(rule: ClassRule, signs: ClassSigns) -> str | None:
    if not rule.commands:
        return ""
    match = next((command for command in signs.commands if command in rule.commands), None)
    return None if match is None else f"It runs {match}."


def _port(rule: ClassRule, signs: ClassSigns) -> str | None:
    if not rule.ports:
        return ""
    match = next((port for port in signs.ports if port in rule.ports), None)
    return None if match is None else f"It has the port {match}."


def _flags(rule: ClassRule, signs: ClassSigns) -> str | None:
    if rule.terminal > signs.terminal or rule.answers > signs.answers or rule.stays > signs.stays:
        return None
    sentences = (
        ("A container has stdin and a terminal.", rule.terminal),
        ("A readiness probe asks it for answers.", rule.answers),
        ("It is restarted for ever.", rule.stays),
    )
    return " ".join(sentence for sentence, counts in sentences if counts)


_CONDITIONS: tuple[Callable[[ClassRule, ClassSigns], str | None], ...] = (_kind, _image, _command, _port, _flags)
