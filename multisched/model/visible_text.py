"""Escapes characters that a terminal or browser interprets or does not show.

Names, labels and messages are untrusted. A control character can move the cursor or change colours, a bidirectional one
reverses the following text, a zero-width one is invisible. All untrusted text is escaped here once, on output.
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
    r"""Returns one line with `\x1b`, `\u202e` and other such escapes for hidden characters."""
    return _HIDDEN.sub(_named, text)


def escaped_lines(text: str) -> str:
    """Escapes all but line ends, for text that is already composed."""
    return _HIDDEN.sub(lambda found: "\n" if found[0] == "\n" else _named(found), text)


def escaped_json(text: str) -> str:
    """Escapes within a JSON text without changing its meaning."""
    return _HIDDEN.sub(lambda found: "\n" if found[0] == "\n" else _utf16(found[0]), text)


def escaped_html(text: str) -> str:
    """Escapes for an HTML page."""
    return html.escape(escaped(text))


def escaped_document(document: Any) -> Any:
    """Escapes all keys and strings of a document of mappings and lists."""
    match document:
        case str():
            return escaped(document)
        case dict():
            return {escaped_document(key): escaped_document(value) for key, value in document.items()}
        case list() | tuple():
            return [escaped_document(value) for value in document]
    return document


def whole_characters(text: str) -> str:
    """Replaces lone surrogates, as in file paths, by question marks: UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


def is_hidden(text: str) -> bool:
    """Reports whether the text has characters that need escaping."""
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
