"""Reports as one self-contained HTML page each, with the stylesheet, tables and plots of the web page. Standard library only.

A report loads no other file. Its tables are written here, so that they are readable without JavaScript. Its plots are
drawn by the page's own modules, which are joined into one script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Final

from multisched.page.files import page_files

MODULES: Final = ("dom.js", "format.js", "plot.js")
"""The page's modules that reports use; each follows the modules that it imports."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "[^"]*";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=const|function|class)", re.MULTILINE)

Escape = Callable[[str], str]


def escaped_html(text: str) -> str:
    return html.escape(text, quote=False)


def report_page(title: str, verdict: str, body: Iterable[str], document: str, script: str) -> str:
    """Returns the page. `title`, `verdict` (one sentence) and `body` are HTML; `document`: JSON, which `script` reads by its id."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{title}</title>'
    )
    inner = "\n".join([f"<h1>{title}</h1>", f'<p class="lead">{verdict}</p>', *body])
    embedded = document.replace("<", "\\u003c")  # so that the JSON cannot close its script element
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_text("style.css")}</style></head>\n<body class="report"><main>\n'
        f'{inner}\n</main><script type="application/json" id="document">{embedded}</script>\n'
        f'<script type="module">"use strict";\n{_joined()}{script}</script>\n</body></html>'
    )


def report_table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, escape: Escape = escaped_html
) -> str:
    """Returns a table as HTML. The first `texts` columns contain texts, the others numbers."""
    kind = ["", *[""] * (texts - 1), *[' class="number"'] * max(0, len(head) - texts)]
    top = "".join(f'<th scope="col"{of}>{escape(name)}</th>' for of, name in zip(kind, head, strict=True))
    lines = (
        f"<tr>{''.join(f'<td{of}>{escape(cell)}</td>' for of, cell in zip(kind, row, strict=True))}</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def report_script(name: str) -> str:
    """Returns the text of a script in the folder `reports`."""
    return (files("multisched.page") / "reports" / name).read_text("utf-8")


def _text(name: str) -> str:
    return page_files()[name].body.decode()


def _joined() -> str:
    return "".join(_EXPORT.sub("", _IMPORT.sub("", _text(name))) for name in MODULES)
