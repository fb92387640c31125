"""Rows as a table, JSON or YAML, for every command that lists something. Control characters are escaped."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Final

from multisched.model.visible_text import escaped, escaped_json, escaped_lines, is_hidden

GAP: Final = "   "
TEXT_CHARS_MIN: Final = 24
"""A wider last column counts as text, which can be wrapped."""
BESIDE_CHARS_MIN: Final = 40
"""Width that it needs next to the other columns."""
TERMINAL_COLUMNS_MIN: Final = 40
COMMAND: Final = "kubectl "
_LABEL: Final = re.compile(r" *\S+(?: \S+)? {2,}")
"""The label at the start of a line, as in `  PreFilter   NodeAffinity: passes`."""


def as_document(document: Any, output: str) -> str:
    """Returns `document` as `json` or `yaml`."""
    if output == "json":
        return escaped_json(json.dumps(document, indent=2, ensure_ascii=False))
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes strings that must be escaped."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if is_hidden(value) else None)

    Dumper.add_representer(str, text)
    return escaped_lines(str(yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True))).rstrip("\n")


def as_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], *, is_wide: bool = False, width: int | None = None
) -> str:
    """Returns columns under upper-case headings, as kubectl prints them.

    On a terminal a long last column is wrapped; if there is not enough width next to the others, it is printed below
    them without its heading. With `is_wide` and into a pipe nothing is wrapped. `width` None: the terminal's.
    """
    cells = [[name.upper() for name in head]]
    cells += [[escaped(str(value)) or "-" for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    fixed = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    width = None if is_wide else width or terminal_width()
    if width is None or fixed + widths[-1] <= width or widths[-1] <= TEXT_CHARS_MIN:
        return "\n".join(_joined(row, widths) for row in cells)
    if width - fixed < BESIDE_CHARS_MIN:
        lines = [_joined(cells[0][:-1], widths[:-1])]
        for row in cells[1:]:
            lines += [_joined(row[:-1], widths[:-1]), *_wrapped(f"  {row[-1]}", width, "  ")]
        return "\n".join(lines)
    lines = []
    for row in cells:
        first, *more = _wrapped(row[-1], width - fixed)
        lines += [_joined([*row[:-1], first], widths), *(" " * fixed + line for line in more)]
    return "\n".join(lines)


def terminal_width() -> int | None:
    """Returns the columns of the terminal that is standard output; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, TERMINAL_COLUMNS_MIN)


def fitted(text: str, width: int | None = None) -> str:
    """Wraps long lines for a terminal with an indent below their text; commands to copy stay whole. `width`: see `as_table`."""
    columns = width or terminal_width()
    if columns is None:
        return text
    lines = []
    for line in text.split("\n"):
        label = _LABEL.match(line)
        indent = label.end() if label is not None else len(line) - len(line.lstrip()) + 2
        is_command = line.lstrip().startswith(COMMAND)
        lines += [line] if len(line) <= columns or is_command else _wrapped(line, columns, " " * indent)
    return "\n".join(lines)


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    ) or [""]
