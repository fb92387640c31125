"""A program that nobody asks does not pay for the answers."""

from __future__ import annotations

import subprocess
import sys

ANSWERING = ("explain_attempt", "explain_known", "explain_trial", "explain_words", "fixes", "rehearsal", "what_if")


def test_what_answers_questions_is_imported_by_the_first_of_them() -> None:
    told = "import sys, multisched.app; print(*(name for name in sys.modules if name.startswith('multisched.')))"
    loaded = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout.split()
    assert "multisched.whatif.explain_source" in loaded
    assert [name for name in loaded if name.rpartition(".")[2] in ANSWERING] == []
