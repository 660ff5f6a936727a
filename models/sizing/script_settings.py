"""What a script of transformers sets, by its own words and the command's."""

from collections.abc import Mapping, Sequence
from typing import Any

from kopt.formats.entrypoint import ScriptFacts
from kopt.formats.entrypoint.script_loading import KBIT_CHECKPOINTING
from kopt.formats.entrypoint.script_options import option_named
from kopt.formats.trainers.fields import Fields, settings_of_arguments
from kopt.formats.trainers.transformers import COMPUTED

_SMALLER_IF_SET = frozenset({"gradient_checkpointing", KBIT_CHECKPOINTING, "load_in_4bit", "load_in_8bit", "use_lora"})
_BITS = ("load_in_4bit", "load_in_8bit")
_NEEDED = frozenset({"per_device_train_batch_size", "max_seq_length", "max_length", "r"})


def settings_in(script: ScriptFacts, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Settings among a script's facts, with the model it names; empty for scripts that are not of transformers.

    ``arguments`` are the command's, which decide what is bound to an option.
    """
    # Ranks of adapters alone are no trainer's settings.
    trains = script.settings or set(script.computed) - {"r"} or "per_device_train_batch_size" in script.bound
    if not trains:
        return {}
    words = {name: value for name, value in settings_of_arguments(arguments).items() if name}
    meant = {option_named(name, script.aliases): value for name, value in words.items()}
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
    return result | ({COMPUTED: sorted(computed)} if computed else {})


def _of_most_memory(name: str, values: list[Any]) -> Any:
    """The value of most memory where several options give one."""
    if name in _SMALLER_IF_SET:
        return all(Fields({name: value}).flag(name) for value in values)
    numbers = [int(value) for value in values if str(value).isdecimal() and len(str(value)) < 19]
    return max(numbers) if len(numbers) == len(values) else values[0]
