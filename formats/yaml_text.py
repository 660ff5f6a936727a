"""YAML as people send it, within bounds: the safe loader, in time and memory that grow with the text alone.

An alias stands for all it points to, and some lines of aliases of aliases for more than a machine holds. Each is
counted as what it stands for, and so are merge keys; a document that points into itself is refused. The one module of
this package that needs more than the standard library (PyYAML, imported on first use).
"""

from typing import Any

MOST_CHARACTERS = 4 << 20
MOST_NODES = 200_000
"""Values of a text with all aliases written out; a manifest of a hundred containers has some thousand."""


class YamlError(ValueError):
    """A text that is no YAML, or more of it than is read; the message names the line where there is one."""


def load_yaml(text: str) -> Any:
    """The first document of a text, None for an empty one. Raises YamlError."""
    return next(iter(load_all_yaml(text)), None)


def load_all_yaml(text: str) -> list[Any]:
    """Every document of a text. Raises YamlError, whatever the text is."""
    import yaml

    if len(text) > MOST_CHARACTERS:
        raise YamlError(f"more than {MOST_CHARACTERS >> 20} MiB of YAML")
    try:
        loader, result = _loader()(text), []
        while loader.check_data():
            result.append(loader.get_data())
        return result
    except YamlError:
        raise
    except yaml.YAMLError as error:
        location = getattr(error, "problem_mark", None)
        where = f"line {location.line + 1}, column {location.column + 1}: " if location else ""
        problem = str(getattr(error, "problem", None) or error)
        raise YamlError(f"{where}{' '.join(problem.split())[:200]}") from error
    except RecursionError as error:
        raise YamlError("nested too deeply") from error
    except (ValueError, TypeError, OverflowError, AttributeError, LookupError) as error:
        # A date that there is not, a number without digits, a key that is a list: the library trips over them.
        raise YamlError(f"not YAML ({str(error)[:200]})") from error


_LOADERS: list[Any] = []


def _loader() -> Any:
    """The class of the loader, made once PyYAML is imported."""
    if not _LOADERS:
        import yaml

        class Bounded(yaml.SafeLoader):
            """Counts what it composes, aliases as what they stand for."""

            def __init__(self, stream: Any) -> None:
                super().__init__(stream)
                self.nodes = 0
                self.sizes: dict[int, int] = {}
                self.kept: list[Any] = []

            def compose_node(self, parent: Any, index: Any) -> Any:
                event: Any = self.peek_event()  # type: ignore[no-untyped-call]
                before = self.nodes
                node = super().compose_node(parent, index)
                if isinstance(event, yaml.AliasEvent):
                    if id(node) not in self.sizes:
                        raise YamlError(f"the alias *{event.anchor} points into itself")
                    self.nodes += self.sizes[id(node)]
                else:
                    self.nodes += 1
                    self.sizes[id(node)] = self.nodes - before
                    # An id is only good while its node lives.
                    self.kept.append(node)
                if self.nodes > MOST_NODES:
                    raise YamlError(f"more than {MOST_NODES} values, with every alias (*) written out")
                return node

        _LOADERS.append(Bounded)
    return _LOADERS[0]
