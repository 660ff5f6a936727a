"""What `make docs` adds to the pages: the list of decision records, which a folder view shows elsewhere."""

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Hook of mkdocs. Appends a link to each record to their index."""
    if page.file.src_uri != "adr/index.md":
        return markdown
    records = sorted(Path(config["docs_dir"], "adr").glob("[0-9]*.md"))
    return "\n".join([markdown, *(f"- [{_title(record)}]({record.name})" for record in records)])


def _title(record: Path) -> str:
    with record.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("# ").strip()
