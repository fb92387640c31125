"""Characters that a terminal or a browser obeys or does not show, written so that everybody sees them.

Names, labels and messages are written by others. A control character moves the cursor or changes colours, a bidirectional one
turns what follows around, one of no width hides. Wherever text of others is shown it goes through here, once, on its way out.
"""

from __future__ import annotations

import html
import re
from typing import Any, Final

_HIDDEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # controls: C0, DEL, C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional
    r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164"  # without width
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    r"\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"  # formats
    r"\u2028\u2029\ud800-\udfff]"  # line ends beside \n, and halves of characters
)
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(text: str) -> str:
    r"""On one line, with `\x1b`, `\u202e` and their like for what does not show."""
    return _HIDDEN.sub(_named, text)


def escaped_lines(text: str) -> str:
    """The same with line ends kept: for text that is put together already."""
    return _HIDDEN.sub(lambda found: "\n" if found[0] == "\n" else _named(found), text)


def escaped_json(text: str) -> str:
    """A JSON text that says the same."""
    return _HIDDEN.sub(lambda found: "\n" if found[0] == "\n" else _utf16(found[0]), text)


def escaped_html(text: str) -> str:
    """For a page."""
    return html.escape(escaped(text))


def escaped_document(document: Any) -> Any:
    """A document of mappings and lists whose keys and texts all show."""
    match document:
        case str():
            return escaped(document)
        case dict():
            return {escaped_document(key): escaped_document(value) for key, value in document.items()}
        case list() | tuple():
            return [escaped_document(value) for value in document]
    return document


def whole_characters(text: str) -> str:
    """With a question mark for each half of a character, as a path may have it: UTF-8 has no form for one."""
    return text.encode("utf-8", "replace").decode()


def is_hidden(text: str) -> bool:
    """Whether anything in it would have to be escaped."""
    return _HIDDEN.search(text) is not None


def _named(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def _utf16(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
