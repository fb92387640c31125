"""The files of the page, read once from the package. Standard library only.

`index.html` is served at `/`, everything else below `page/`. All URLs in the files are relative, so that the page works
behind a forwarded port and behind the API server's proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

INDEX: Final = "index.html"
TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Suffix -> content type. Other files are not served."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of every file: nothing inline, nothing from other origins."""


class PageFile(NamedTuple):
    """One file, ready to be sent."""

    content_type: str
    body: bytes


@cache
def page_files() -> Mapping[str, PageFile]:
    """Returns path below `static/` -> file."""
    return dict(_read(files("multisched.page") / "static", ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found = []
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        path = f"{prefix}{one.name}"
        kind = TYPES.get(f".{one.name.rpartition('.')[2]}")
        if one.is_dir():
            found += _read(one, f"{path}/")
        elif kind is not None:
            found.append((path, PageFile(kind, one.read_bytes())))
    return found
