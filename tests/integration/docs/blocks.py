"""The fenced blocks of a document, and what their first line says of them.

```sh              commands; each has to succeed
```sh terminals    programs that go on, one in each line, in a terminal of its own
```sh no-run       commands that no test can run; `test_documents_run.py` has the reasons
```console         `$ ` and a command, then what it prints; `...` stands for what is left out
```console demo    the same beside `make demo`, in a document whose commands have another cluster
```text            output alone, or a drawing
```yaml            a file; where its first line is `# NAME`, it is saved under that name
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
DOCUMENTS: Final = tuple(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "multisched/**/*.md", "domains/**/*.md", "tests/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
)
MARKS: Final = {"sh": {"", "terminals", "no-run"}, "console": {"", "demo", "no-run"}}
FILES: Final = frozenset({"csv", "dockerfile", "json", "python", "toml", "yaml"})
FENCE: Final = re.compile(r"^```(\S*)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME: Final = re.compile(r"# (\S+\.\w+)\n")
PROMPT: Final = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """One block."""

    document: Path
    line: int
    heading: str
    """Of the chapter: the last one of the second level."""
    language: str
    mark: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line, by which it is known."""
        return self.text.partition("\n")[0]

    @property
    def file(self) -> str:
        """The name under which it is saved; empty where it has none."""
        found = NAME.match(self.text) if self.language in FILES else None
        return found[1] if found else ""

    def commands(self) -> Iterator[tuple[str, str]]:
        """Of a console: each command with what it prints."""
        for part in re.split(rf"^{re.escape(PROMPT)}", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks_of(document: Path, text: str | None = None) -> list[Block]:
    """In their order."""
    text = document.read_text("utf-8") if text is None else text
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        headings = re.findall(r"^##? (.+)$", FENCE.sub("", before), re.MULTILINE)
        line = before.count("\n") + 1
        found.append(
            Block(document, line, headings[-1] if headings else "", match[1], (match[2] or "").strip(), match[3])
        )
    return found
