"""The option `--provider KEY=VALUE` of `multisched cluster`."""

from __future__ import annotations

import pytest
import typer

from multisched.cli.provider_option import provider_of


def test_settings_of_the_provider_and_capacity_of_its_nodes_are_read() -> None:
    settings, capacity = provider_of(["perSecond=2.5", "burst=7", "account=eci", "pods=9"])

    assert (settings.perSecond, settings.burst, settings.account) == (2.5, 7, "eci")
    assert capacity == {"pods": "9"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("perSecnd=2", "did you mean"),
        ("perSecond=0", "$.perSecond"),
        ("burst=many", "$.burst"),
        ("cpu=lots", "lots"),
        ("failures=[]", "not a setting"),
    ],
)
def test_wrong_settings_are_named(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        provider_of([text])

    told = capsys.readouterr().err
    assert text in told
    assert said in told
