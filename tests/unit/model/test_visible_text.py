"""What would be obeyed or hidden is shown."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.visible_text import escaped, escaped_document, escaped_json, escaped_lines, is_hidden

NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories: controls, formats (bidirectional and most of no width), surrogates, separators of lines."""
FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u3164\ufe00\ufe0f\uffa0\U000e0100"
"""Called letters or marks, and shown as nothing."""


def test_only_hidden_characters_are_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in NOT_SHOWN or character in FILLERS:
            assert escaped(character).isascii(), hex(code)
    for plain in ("web-1", "größe", "日本語", "→ ▁▂▃ …", "a b", "🙂"):
        assert escaped(plain) == plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31mred", r"\x9b31mred"),
        ("a\u202eb", r"a\u202eb"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("a\u200bb\x7f", r"a\u200bb\x7f"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_hidden_character_is_shown_by_its_code(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped_document({text: [text, 1]}) == {shown: [shown, 1]}


def test_escaped_lines_keep_their_line_ends() -> None:
    assert escaped_lines("a\x85b\nc\r\n") == "a\\x85b\nc\\r\n"


@given(st.text())
def test_escaped_json_has_the_same_content(text: str) -> None:
    document = {text: [text, {"k": text}]}
    shown = escaped_json(json.dumps(document, indent=2, ensure_ascii=False))
    assert json.loads(shown) == document
    assert not is_hidden(shown.replace("\n", ""))


@given(st.text())
def test_escaped_double_quoted_yaml_has_the_same_content(text: str) -> None:
    shown = escaped_lines('"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"')
    assert yaml.safe_load(shown) == text
