"""What is logged while a command runs is a sentence with its fields, beside what the command prints."""

from __future__ import annotations

import logging

import pytest

from multisched.cli.driving import drive


def test_command_warning_is_a_sentence_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> int:
        log = logging.getLogger("multisched.somewhere")
        log.info("not for people")
        log.warning("something is odd", extra={"path": "/a\x1b[31m", "kinds": 3})
        log.warning("and bare")
        logging.getLogger("multisched.plugins.quota.quota_source").warning("quota has no effect")
        return 4

    with pytest.raises(SystemExit) as ended:
        drive(work)
    assert ended.value.code == 4
    assert capsys.readouterr().err.splitlines() == [
        "multisched: something is odd: path /a\\x1b[31m, kinds 3",
        "multisched: and bare",
    ]
