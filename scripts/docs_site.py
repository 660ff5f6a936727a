"""What `make docs` adds to the pages: the list of decision records, which a folder view shows elsewhere, and what each
reason code and alert means, which the command line says by itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kopt.core.alerts.catalogue import alert_rules, kinds
from kopt.core.reason_codes.catalogue import NOTHING_TO_DO, areas, reason_codes


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Hook of mkdocs. Appends a link to each record to their index, and a section for each code to their page."""
    if page.file.src_uri == "adr/index.md":
        records = sorted(Path(config["docs_dir"], "adr").glob("[0-9]*.md"))
        return "\n".join([markdown, *(f"- [{_title(record)}]({record.name})" for record in records)])
    if page.file.src_uri == "alerts.md":
        return "\n".join([markdown, *_alerts()])
    if page.file.src_uri == "reasons.md":
        return "\n".join([markdown, *_codes_by_area(), *_sections()])
    return markdown


def _alerts() -> Iterator[str]:
    for kind, title in kinds().items():
        yield f"\n## {title}"
        for rule in alert_rules():
            if rule.kind == kind:
                needs = ", ".join(source.value for source in rule.needs)
                yield f"\n### {rule.alert}\n\n*{rule.severity.value}, from metrics of {needs}.* {rule.means}"
                yield f"\n{rule.do}"
                yield f"\n    {rule.expr}\n\nfor {rule.wait}."


def _title(record: Path) -> str:
    with record.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("# ").strip()


def _codes_by_area() -> Iterator[str]:
    for area, title in areas().items():
        codes = [code for code, meanings in reason_codes().items() if area in (meaning.area for meaning in meanings)]
        yield f"\n**{title}:** " + ", ".join(f"[{code}](#{code.lower()})" for code in codes)


def _sections() -> Iterator[str]:
    for code, meanings in reason_codes().items():
        yield f"\n## {code}"
        for meaning in meanings:
            yield f"\n*{areas()[meaning.area]}.* {meaning.means}\n\n{meaning.do or NOTHING_TO_DO}"
