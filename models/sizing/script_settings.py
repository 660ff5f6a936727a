"""What a script of transformers sets, by its own words and the command's."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.formats.entrypoint import ScriptFacts
from kopt.formats.entrypoint.script_loading import KBIT_CHECKPOINTING
from kopt.formats.entrypoint.script_options import option_named, taken_apart
from kopt.formats.trainers.fields import Fields, settings_of_arguments
from kopt.formats.trainers.transformers import COMPUTED, STRANGE

_SMALLER_IF_SET = frozenset({"gradient_checkpointing", KBIT_CHECKPOINTING, "load_in_4bit", "load_in_8bit", "use_lora"})
_BITS = ("load_in_4bit", "load_in_8bit")
_NEEDED = frozenset({"per_device_train_batch_size", "max_seq_length", "max_length", "r"})

_YES_OR_NO = {"true", "false", "yes", "no", "1", "0", "on", "off", "y", "n", "t", "f"}
_JOINED = re.compile(r"[A-Za-z][0-9.]+")
_MOST_STRANGE = 20


def settings_in(script: ScriptFacts, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Settings among a script's facts, with the model it names; empty for scripts that are not of transformers.

    ``arguments`` are the command's, which decide what is bound to an option.
    """
    # Ranks of adapters alone are no trainer's settings.
    trains = script.settings or set(script.computed) - {"r"} or "per_device_train_batch_size" in script.bound
    if not trains:
        return {}
    apart = [part for word in arguments for part in taken_apart(word, script.aliases, script.stored)]
    words = {name: value for name, value in settings_of_arguments(apart).items() if name}
    meant = {option_named(name, script.aliases): _stored(name, value, script) for name, value in words.items()}
    given = {**script.defaults, **meant}
    named = {"model_name_or_path": script.models[0]} if script.models else {}
    own = {**script.loading, **script.settings}
    computed = set(script.computed)
    bound: dict[str, Any] = {}
    for name, options in script.bound.items():
        values = [given.get(option) for option in str(options).split(",")]
        stated = [value for value in values if value is not None]
        if len(stated) < len(values) and name in _NEEDED:
            computed.add(name)
        if stated:
            bound[name] = _of_most_memory(
                name, [*stated, own[name]] if name in own and name in script.loading else stated
            )
    result = {**script.defaults, **meant, **named, **script.lora, **own, **bound}
    if result.pop(KBIT_CHECKPOINTING, False) and Fields(result).flag(*_BITS):
        result["gradient_checkpointing"] = True
    computed = {"gradient_checkpointing" if name == KBIT_CHECKPOINTING else name for name in computed} - words.keys()
    strange = _strange(words, script)
    return result | ({COMPUTED: sorted(computed)} if computed else {}) | ({STRANGE: strange} if strange else {})


def _stored(name: str, value: Any, script: ScriptFacts) -> Any:
    """What a name without a value stands for; a word behind a switch belongs to no option."""
    option = option_named(name, script.aliases)
    alias = (
        name
        if name in script.aliases
        else next((each for each, own in script.aliases.items() if own == option and each.startswith(name)), name)
    )
    stored = script.stored.get(alias, value)
    return stored if value is True or (isinstance(stored, bool) and str(value).lower() not in _YES_OR_NO) else value


def _strange(words: Mapping[str, Any], script: ScriptFacts) -> list[str]:
    """Words of the command that are no option of the script, with the nearest one."""
    result = []
    for name in words:
        unread = option_named(name, script.aliases) not in {*script.aliases.values(), *script.aliases}
        if unread and (script.complete or _JOINED.fullmatch(name)):
            near = difflib.get_close_matches(name, [str(alias) for alias in script.aliases], 1)
            asked = f": is {'--' if len(near[0]) > 1 else '-'}{near[0]} meant?" if near else ""
            result.append(f"the script has no option {'-' if _JOINED.fullmatch(name) else '--'}{name[:60]}{asked}")
    return result[:_MOST_STRANGE]


def _of_most_memory(name: str, values: list[Any]) -> Any:
    """The value of most memory where several options give one."""
    if name in _SMALLER_IF_SET:
        return all(Fields({name: value}).flag(name) for value in values)
    numbers = [int(value) for value in values if str(value).isdecimal() and len(str(value)) < 19]
    return max(numbers) if len(numbers) == len(values) else values[0]
