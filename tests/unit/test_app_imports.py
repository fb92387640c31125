"""A program that nobody asks does not pay for the answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ANSWERING = (
    "explain_attempt",
    "explain_known",
    "explain_trial",
    "explain_words",
    "fixes",
    "repair_trial",
    "sandbox",
    "what_if",
)

WHATIF = Path(__file__).parents[2] / "multisched"


def test_request_handlers_are_imported_by_the_first_request() -> None:
    told = "import sys, multisched.app; print(*(name for name in sys.modules if name.startswith('multisched.')))"
    loaded = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout.split()
    assert "multisched.whatif.explain_source" in loaded
    assert not [name for name in ANSWERING if not list(WHATIF.rglob(f"{name}.py"))], "named otherwise now"
    assert [name for name in loaded if name.rpartition(".")[2] in ANSWERING] == []


def test_loans_are_imported_for_the_first_domain_that_has_some() -> None:
    told = "import sys, multisched.app; from multisched.config import loading; loading.default(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout.split()
    of_loans = {name for name in loaded if name.startswith("multisched.plugins.loans.")}
    assert of_loans == {"multisched.plugins.loans.terms"}


def test_numpy_imports_nothing_during_attempts() -> None:
    """`np.unique` imports numpy.ma at its first call, which took 15 ms of a step."""
    told = "import sys, multisched.app, numpy as np; before = set(sys.modules); np.unique(np.arange(3)); print(*{*sys.modules} - before)"
    assert subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout.split() == []
