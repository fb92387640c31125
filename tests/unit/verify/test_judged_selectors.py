"""Selectors as the judge reads them: equal ones are one object, and what it remembers of them is small."""

import tracemalloc

from multisched.verify.selectors import label_selector

SELECTORS = 1_000
BYTES_MAX = 1_500
"""Of one selector with one expression."""


def document(number: int) -> dict[str, object]:
    expression = {"key": f"of-{number}", "operator": "In", "values": [f"value-{number}"]}
    return {"labelSelector": {"matchExpressions": [expression]}}


def test_equal_selectors_are_shared() -> None:
    assert label_selector(document(-1), "labelSelector") is label_selector(document(-1), "labelSelector")


def test_cached_selector_uses_little_memory() -> None:
    documents = [document(number) for number in range(SELECTORS)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for one in documents:
            label_selector(one, "labelSelector")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < SELECTORS * BYTES_MAX
