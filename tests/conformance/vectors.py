"""The recorded problems and answers, and when an answer of ours counts as the same.

Two things are compared with care. NodeResourcesFit names scalar resources in the order of a Go map, which differs between
two nodes of one recorded answer, so those reasons are compared without their order. And where upstream breaks a tie between
nodes to preempt on by chance, `preemptions` lists every right answer, and ours has to be one of them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

HERE = Path(__file__).parent
PROBLEMS_FILE, ANSWERS_FILE = HERE / "problems.jsonl.gz", HERE / "answers.jsonl.gz"

NATIVE_REASONS = ("Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage")
POST_FILTER = ". no new claims to deallocate"
"""Where PostFilter's part of a sentence begins."""

Document = Mapping[str, Any]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file with one per line, packed or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            if line.strip():
                yield orjson.loads(line)


def recorded_problems(family: str = "") -> list[dict[str, Any]]:
    """All recorded problems, or those of one family, in their order."""
    return [p for p in read_lines(PROBLEMS_FILE) if not family or p["family"] == family]


def recorded_answers() -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in read_lines(ANSWERS_FILE)}


def comparable(answer: Document, *, with_post_filter: bool = True) -> dict[str, Any]:
    """An answer without the order of scalar resources; on demand without what PostFilter says and does."""
    kept = dict(answer)
    if not kept.get("scores"):  # a Go map that is empty is not written
        kept.pop("scores", None)
    kept["rejected"] = {node: _ordered(refusal) for node, refusal in answer["rejected"].items()}
    if not with_post_filter:
        kept.pop("preemptions", None)
        if "fitError" in kept:
            sentence = kept["fitError"].split(POST_FILTER)[0]
            kept["fitError"] = sentence if sentence.endswith(".") else f"{sentence}."
    return kept


def _ordered(refusal: Document) -> dict[str, Any]:
    reasons = refusal["reasons"]
    native = [r for r in reasons if r in NATIVE_REASONS]
    return {**refusal, "reasons": [*native, *sorted(r for r in reasons if r not in NATIVE_REASONS)]}


def differences(found: Document, expected: Document, *, with_post_filter: bool = True) -> list[str]:
    """Where the answers differ, one line each; empty if they are the same."""
    ours = comparable(found, with_post_filter=with_post_filter)
    theirs = comparable(expected, with_post_filter=with_post_filter)
    lines: list[str] = []
    for field in sorted(ours.keys() | theirs.keys()):
        if field == "preemptions" and _is_one_of(ours.get(field), theirs.get(field)):
            continue
        lines.extend(_field_differences(field, ours.get(field), theirs.get(field)))
    return lines


def _is_one_of(ours: Iterable[Document] | None, theirs: Iterable[Document] | None) -> bool:
    right = list(theirs or ())
    return bool(ours) and all(one in right for one in ours or ())


def _field_differences(field: str, ours: object, theirs: object) -> Iterator[str]:
    if ours == theirs:
        return
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from _field_differences(f"{field}[{key}]", ours.get(key), theirs.get(key))
    else:
        yield f"{field}: ours {_text(ours)}, kube-scheduler {_text(theirs)}"


def _text(value: object) -> str:
    return "nothing" if value is None else orjson.dumps(value).decode()
