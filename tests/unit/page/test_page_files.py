"""The files of the page: nothing inline, nothing from elsewhere, relative URLs, and names as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from multisched.model.visible_text import is_hidden
from multisched.page import files
from multisched.page.files import INDEX, POLICY, page_files

STATIC: Final = Path(files.__file__).parent / "static"
MODULES: Final = sorted(STATIC.rglob("*.js"))
LINES_MAX: Final = 300


def imports(module: Path) -> list[str]:
    return re.findall(r'^import .* from "([^"]*)";$', module.read_text(), re.MULTILINE)


def test_all_files_of_the_folder_are_served() -> None:
    assert set(page_files()) == {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}


def test_policy_allows_only_the_files_of_the_page() -> None:
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'")
    html = page_files()[INDEX].body.decode()
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", html), (
        "inline parts are refused by the policy"
    )


def test_all_urls_are_relative() -> None:
    """The page is also read below the prefix of the API server's proxy."""
    html = page_files()[INDEX].body.decode()
    urls = re.findall(r'(?:href|src)="([^"]*)"', html)
    urls += [url for path in MODULES for url in imports(path)]
    assert len(urls) > 10
    assert [url for url in urls if url.startswith("/") or ":" in url] == []
    for path in MODULES:
        for url in imports(path):
            assert (path.parent / url).is_file(), f"{path.name} imports {url}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(STATIC)))
def test_modules_write_text_and_never_markup(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= LINES_MAX
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", source
    )


def test_page_escapes_the_same_characters_as_the_program() -> None:
    source = (STATIC / "dom.js").read_text()
    block = source[source.index("new RegExp") : source.index('"gu"')]
    classes = "".join(re.findall(r'"([^"]*)"', block))
    ours = re.compile(re.sub(r"\\\\u\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", classes))
    differ = [hex(code) for code in range(0x110000) if bool(ours.match(chr(code))) != is_hidden(chr(code))]
    assert differ == []
