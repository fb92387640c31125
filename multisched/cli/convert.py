"""`multisched config convert`: converts a KubeSchedulerConfiguration, and lists what could not be converted."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from multisched.config.findings import Finding
from multisched.config.kube.convert import Conversion, convert
from multisched.config.loading import read_text
from multisched.model.visible_text import escaped
from multisched.observe.tables import as_document

WIDTH: Final = 118


class Dumper(yaml.SafeDumper):
    """Writes repeated values in full instead of YAML aliases, because multisched refuses a configuration with aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents list items under their key, as in the other files of this project."""
        super().increase_indent(flow, False)


def load(file: Path) -> Conversion:
    """Converts a file. Raises ConfigError."""
    return convert(read_text(file), str(file))


def as_yaml(conversion: Conversion, source: str) -> str:
    """Returns the MultischedConfiguration as YAML. It begins with comments that list what differs or could not be converted."""
    body = yaml.dump(conversion.data, Dumper=Dumper, sort_keys=False, default_flow_style=None, width=WIDTH)
    return "\n".join([*_header(conversion, source), body])


def as_json(conversion: Conversion) -> str:
    """Returns a JSON document with the MultischedConfiguration and the findings."""
    found = [finding.as_data() for finding in conversion.findings]
    return as_document({"configuration": conversion.data, "findings": found}, "json") + "\n"


def _header(conversion: Conversion, source: str) -> Iterator[str]:
    yield from comment(f"Converted from {source} by `multisched config convert`.", "# ")
    findings = list(conversion.findings)
    if findings:
        yield "# What differs, or could not be converted:"
    for finding in findings:
        yield from comment(_line(finding), "#   ")


def _line(finding: Finding) -> str:
    return f"{finding.severity.value}: line {finding.line}: {finding.text}"


def comment(text: str, lead: str) -> list[str]:
    """Returns the text as wrapped comment lines. Line breaks and control characters in it cannot end the comment."""
    plain = " ".join(escaped(text).split())
    return textwrap.wrap(plain, WIDTH, initial_indent=lead, subsequent_indent=lead + "  ", break_on_hyphens=False)
