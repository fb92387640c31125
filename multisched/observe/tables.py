"""Rows as a table, JSON or YAML, the same for every command that lists something. All of them show what others hide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from multisched.model.visible_text import escaped, escaped_json, escaped_lines, is_hidden

GAP: Final = "   "
CELL_CHARS_MAX: Final = 80


def as_document(document: Any, output: str) -> str:
    """`document` as `json` or `yaml`."""
    if output == "json":
        return escaped_json(json.dumps(document, indent=2, ensure_ascii=False))
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what has to be escaped."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if is_hidden(value) else None)

    Dumper.add_representer(str, text)
    return escaped_lines(str(yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True))).rstrip("\n")


def as_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, is_wide: bool = False) -> str:
    """Columns under upper-case heads, as kubectl prints them; long cells are cut unless `is_wide`."""
    cells = [[name.upper() for name in head]]
    cells += [[_cell(value, is_wide=is_wide) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def _cell(value: object, *, is_wide: bool) -> str:
    text = escaped(str(value)) or "-"
    return text if is_wide or len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
