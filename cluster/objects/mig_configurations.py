"""Configurations of NVIDIA's mig-manager: the ConfigMap that it cuts the GPUs of a node by.

A configuration (``mig-configs`` of mig-parted's file) is a list of rules, each for all GPUs of a node or for some by
index. Which one a node has is its label ``nvidia.com/mig.config``; the answer is ``nvidia.com/mig.config.state``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import items, mapping, text
from kopt.formats.yaml_text import YamlError, load_yaml

CONFIGURATION_LABEL, STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
FILE = "config.yaml"
"""The key of the ConfigMap."""
_MOST_RULES, _MOST_INSTANCES = 64, 64


class ConfigurationError(ValueError):
    """What is no list of configurations; the message says where it was read."""


@dataclass(frozen=True)
class ConfigurationRule:
    """``gpus``: indices, None for all of a node. ``instances``: by profile, on each of them; None where MIG is off.
    ``is_filtered``: for some models only, which the rule names by PCI devices."""

    gpus: tuple[int, ...] | None
    instances: Mapping[str, int] | None
    is_filtered: bool = False


Configurations = Mapping[str, tuple[ConfigurationRule, ...]]


def read_configurations(document: Object) -> Configurations:
    """By name; one that cannot be read is left out. Raises ConfigurationError for a file that cannot be read."""
    written = text(document, "data", FILE)
    where = "/".join(text(document, "metadata", name) for name in ("namespace", "name"))
    if not written:
        raise ConfigurationError(f"ConfigMap {where} has no {FILE}")
    try:
        content = load_yaml(written)
    except YamlError as error:
        raise ConfigurationError(f"{FILE} of ConfigMap {where} is no YAML: {error}") from error
    result = {}
    for name, _ in items(content, "mig-configs"):
        rules = [_rule(rule) for _, rule in items(content, "mig-configs", name)][:_MOST_RULES]
        if rules and all(rule is not None for rule in rules):
            result[str(name)] = tuple(rule for rule in rules if rule is not None)
    return result


def _rule(document: object) -> ConfigurationRule | None:
    rule = mapping(document)
    devices, enabled = rule.get("devices"), rule.get("mig-enabled")
    gpus = tuple(index for _, index in items(rule, "devices") if isinstance(index, int) and 0 <= index < 64)
    if devices != "all" and not gpus:
        return None
    instances: dict[str, int] | None = None
    if enabled is True:
        instances = {}
        for profile, count in mapping(rule, "mig-devices").items():
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST_INSTANCES:
                return None
            if count:
                instances[str(profile)] = count
    return ConfigurationRule(None if devices == "all" else gpus, instances, bool(rule.get("device-filter")))
