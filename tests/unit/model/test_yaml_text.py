"""YAML that people write: read as plain data, or refused with a sentence, whatever it holds."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.yaml_text import NotYamlError, yaml_documents


def test_documents_are_plain_data_and_dates_stay_text() -> None:
    assert yaml_documents("a: 1\n---\n---\n- 2026-11-27\n- &x [1]\n- *x\n") == [{"a": 1}, ["2026-11-27", [1], [1]]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1", "line 2: did not find expected ',' or ']'"),
        ("!!int x", "a value does not match its type: "),
        ("!!timestamp x", "a value does not match its type: "),
        ("!!float ''", "a value does not match its type: "),
        ("? [a]\n: 1", "line 1: found unhashable key"),
        ("!!python/name:os.system", "line 1: could not determine a constructor"),
        ("a: &x [*x]", "line 1: *x is used within its own anchor"),
        ("[" * 5000, "line 1: nested deeper than 100 levels"),
        ("a: \x07", "unacceptable character"),
    ],
)
def test_other_yaml_is_refused_with_its_position(text: str, why: str) -> None:
    with pytest.raises(NotYamlError) as refused:
        yaml_documents(text)
    assert str(refused.value).startswith(why)


@given(st.text(st.sampled_from("!&*[]{}:,-?|>'\"#%@ \nab1.~<=")))
def test_any_text_is_read_or_refused_with_the_yaml_error(text: str) -> None:
    with suppress(NotYamlError):
        yaml_documents(text)
