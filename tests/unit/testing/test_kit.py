"""The description of `multisched.testing`: what it names exists."""

from __future__ import annotations

import pkgutil
import re

import pytest

import multisched.testing

NAMED = re.findall(r"`(multisched(?:\.\w+)+)`", multisched.testing.__doc__ or "")


def test_something_is_named() -> None:
    assert len(NAMED) > 3


@pytest.mark.parametrize("name", NAMED)
def test_what_the_kit_names_is_there(name: str) -> None:
    assert pkgutil.resolve_name(name)
