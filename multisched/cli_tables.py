"""Rows as a table, JSON or YAML, the same for every command that lists something."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

GAP: Final = "   "
CELL_CHARS_MAX: Final = 80


def as_document(document: Any, output: str) -> str:
    """`document` as `json` or `yaml`."""
    if output == "json":
        return json.dumps(document, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True)).rstrip("\n")


def as_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, is_wide: bool = False) -> str:
    """Columns under upper-case heads, as kubectl prints them; long cells are cut unless `is_wide`."""
    cells = [[name.upper() for name in head]]
    cells += [[_cell(value, is_wide=is_wide) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def one_line(text: str) -> str:
    """Without control characters: names and messages were written by others."""
    return "".join(c if c.isprintable() else " " for c in text)


def _cell(value: object, *, is_wide: bool) -> str:
    text = one_line(str(value)) or "-"
    return text if is_wide or len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
