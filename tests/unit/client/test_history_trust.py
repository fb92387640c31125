"""What reflectors say of the server's history: whoever listens hears of each change of trust, once."""

from __future__ import annotations

from multisched.client.history import History


def test_lost_trust_is_not_lost_twice() -> None:
    heard: list[bool] = []
    history = History()
    history.on_change(heard.append)
    history.join("/pods", lambda: None)
    history.join("/nodes", lambda: None)

    history.doubt("/pods")
    history.went_back("/nodes")
    history.went_back("/nodes")
    assert (heard, history.rewritten) == ([False], 1)

    history.started_over("/pods")
    assert heard == [False]
    history.started_over("/nodes")
    assert heard == [False, True]
