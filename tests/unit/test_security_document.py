"""What SECURITY.md claims names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_attacker_row_names_existing_tests() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in text.split("## Attackers")[1].splitlines() if line.startswith("|")][2:]
    assert rows
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)`", row.split("|")[4])
        assert named, row
        assert all((ROOT / "tests" / name).is_file() for name in named), row
