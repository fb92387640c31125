"""`config default` shows every setting of the schema with its explanation: what has no default is there as a comment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from multisched.config import loading
from multisched.config import print as config_print
from multisched.config.document import ConfigError

SCHEMA: Final = json.loads(config_print.schema_text())
TEXT: Final = config_print.configuration_text(loading.default())
SETTING: Final = re.compile(r"^ *#?(?:- )?([a-zA-Z]+):(?: |$)")
Setting = tuple[str, str]
"""Section and name."""


def every_setting() -> set[Setting]:
    sections = {"Configuration": SCHEMA, **SCHEMA["$defs"]}
    return {(section, name) for section, part in sections.items() for name in part.get("properties", {})}


def uncommented(text: str) -> Any:
    """The document with all that stands in comments that begin with # and no space; a name that is there twice is the later one."""
    return yaml.safe_load(re.sub(r"^( *)#(?! )", r"\1", text, flags=re.MULTILINE))


def sections_below(schema: dict[str, Any]) -> Iterator[str]:
    """Those that a property's schema names."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    items = [schema["items"]] if "items" in schema else []
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *items):
        yield from sections_below(part)


def shown(value: Any, section: str) -> Iterator[Setting]:
    """Settings of the schema that a document has, from this section on."""
    if isinstance(value, list):
        for item in value:
            yield from shown(item, section)
    if not isinstance(value, dict):
        return
    properties = (SCHEMA if section == "Configuration" else SCHEMA["$defs"][section]).get("properties", {})
    for name, inner in value.items():
        if name in properties:
            yield section, name
            for below in sections_below(properties[name]):
                yield from shown(inner, below)


def test_every_setting_is_printed() -> None:
    assert len(every_setting()) > 80
    assert set(shown(uncommented(TEXT), "Configuration")) == every_setting()


@pytest.mark.parametrize("gone", ["queueSort", "probePort", "every", "isolation", "certFile", "urlPrefix", "from"])
def test_missing_setting_would_be_detected(gone: str) -> None:
    without = re.sub(rf"^ *#(- )?{gone}:.*\n", "", TEXT, flags=re.MULTILINE)
    assert without != TEXT
    try:
        found = set(shown(uncommented(without), "Configuration"))
    except yaml.YAMLError:  # the first one of an item: nothing of the item is left
        return
    assert found < every_setting()


def test_every_setting_has_an_explanation() -> None:
    sections = {"Configuration": SCHEMA, **SCHEMA["$defs"]}
    bare = [(s, name) for s, name in every_setting() if not sections[s]["properties"][name].get("description")]
    assert bare == []


def test_explanation_precedes_the_first_occurrence_of_a_setting() -> None:
    before, first = "", set[str]()
    unexplained = []
    for line in TEXT.splitlines():
        found = SETTING.match(line)
        if found and found[1] not in first:
            first.add(found[1])
            if not before.lstrip().startswith("# "):
                unexplained.append(line)
        before = line
    assert unexplained == []


def test_commented_settings_are_valid() -> None:
    """Its values are kinds such as TEXT: other faults are found, but none is an unknown key."""
    with pytest.raises(ConfigError) as caught:
        loading.parse(yaml.safe_dump(uncommented(TEXT)), "uncommented")
    assert [problem for problem in caught.value.problems if "unknown key" in str(problem)] == []
