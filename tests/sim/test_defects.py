"""Every deliberate defect fits the current program: a replacement accepts the calls of the replaced function.

A replacement that did not would raise at its first call, and would wrongly count as caught.
"""

from __future__ import annotations

import inspect
from inspect import Parameter

import pytest

from tests.sim import (
    card_defects,
    defects,
    edit_defects,
    gang_defects,
    job_defects,
    loan_defects,
    planted_defects,
    quota_defects,
    quota_room_defects,
    recent_defects,
    reload_defects,
    slice_defects,
    tide_defects,
)
from tests.sim.mutants import FIRST, UNSHOWN


@pytest.mark.parametrize("name", sorted(recent_defects.DEFECTS))
def test_defect_has_the_signature_of_the_replaced_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[tuple[object, object]] = []

    def note(owner: object, attribute: str, replacement: object) -> None:
        put.append((inspect.getattr_static(owner, attribute), replacement))

    monkeypatch.setattr(defects, "put", note)
    monkeypatch.setattr(recent_defects, "put", note)
    monkeypatch.setattr(card_defects, "put", note)
    monkeypatch.setattr(edit_defects, "put", note)
    monkeypatch.setattr(gang_defects, "put", note)
    monkeypatch.setattr(quota_defects, "put", note)
    monkeypatch.setattr(reload_defects, "put", note)
    monkeypatch.setattr(tide_defects, "put", note)
    monkeypatch.setattr(job_defects, "put", note)
    monkeypatch.setattr(loan_defects, "put", note)
    monkeypatch.setattr(slice_defects, "put", note)
    monkeypatch.setattr(quota_room_defects, "put", note)
    monkeypatch.setattr(planted_defects, "put", note)

    recent_defects.DEFECTS[name]()

    assert put
    for genuine, replacement in put:
        check_fit(genuine, replacement)


def test_every_defect_has_a_first_seed_or_is_listed_without_one() -> None:
    assert FIRST.keys() | UNSHOWN == recent_defects.DEFECTS.keys()
    assert not FIRST.keys() & UNSHOWN


def check_fit(genuine: object, replacement: object) -> None:
    if isinstance(genuine, property):
        assert isinstance(replacement, property)
        return
    if isinstance(genuine, staticmethod | classmethod):
        genuine = genuine.__func__
    if not inspect.isfunction(genuine):
        assert isinstance(replacement, type(genuine))
        return
    assert callable(replacement)
    assert inspect.iscoroutinefunction(genuine) == inspect.iscoroutinefunction(replacement)
    taken = inspect.signature(replacement)
    for only_needed in (False, True):
        parameters = [
            one
            for one in inspect.signature(genuine).parameters.values()
            if one.default is Parameter.empty or not only_needed
        ]
        given = [None for one in parameters if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
        named = {one.name: None for one in parameters if one.kind is Parameter.KEYWORD_ONLY}
        taken.bind(*given, **named)
