"""Notebooks (nbformat 3 and 4) as Python source: code cells in order, shell and magic lines commented out."""

import json
from typing import Any

from kopt.formats.entrypoint.entrypoint import EntrypointError

_MAX_CHARACTERS = 64 << 20
_FOREIGN_CELLS = ("%%bash", "%%sh", "%%html", "%%javascript", "%%writefile", "%%latex", "%%markdown", "%%script")


def notebook_source(text: str) -> str:
    """The Python of a notebook; outputs are ignored.

    Raises:
        EntrypointError: not a notebook, or one of another language.
    """
    if len(text) > _MAX_CHARACTERS:
        raise EntrypointError(f"the notebook holds {len(text):,} characters; clear its outputs or give the script")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EntrypointError(f"not a notebook: {error}; give an .ipynb file or its script") from None
    if not isinstance(document, dict):
        raise EntrypointError("not a notebook: no JSON object; give an .ipynb file or its script")
    language = _text(_member(_member(document, "metadata"), "kernelspec").get("language", "python"))
    if language.lower() not in ("python", "ipython"):
        raise EntrypointError(f"the notebook is written in {language}; only Python can be run")
    sheets = document.get("worksheets")
    first = sheets[0] if isinstance(sheets, list) and sheets and isinstance(sheets[0], dict) else {}
    cells = document.get("cells", first.get("cells"))
    if not isinstance(cells, list):
        raise EntrypointError("not a notebook: it has no cells; give an .ipynb file or its script")
    code = [_cell(cell) for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    return "\n".join(part for part in code if part.strip()) + "\n"


def _member(document: Any, name: str) -> dict[str, Any]:
    result = document.get(name) if isinstance(document, dict) else None
    return result if isinstance(result, dict) else {}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _cell(cell: dict[str, Any]) -> str:
    source = _text(cell.get("source", cell.get("input", "")))
    foreign = source.lstrip().startswith(_FOREIGN_CELLS)
    lines = []
    for line in source.splitlines():
        bare = line.lstrip()
        if foreign or bare.startswith(("!", "%", "?")) or bare.rstrip().endswith("??"):
            # "pass" keeps a block whose only line is a magic one.
            lines.append(f"{line[: len(line) - len(bare)]}pass  # {bare}")
        else:
            lines.append(line)
    return "\n".join(lines)
