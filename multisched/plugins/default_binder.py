"""DefaultBinder: one POST of pods/binding."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from multisched.framework.ports import Binder, BindReply, BindRequest
from multisched.framework.traits import Traits


class DefaultBinder:
    """Source: kube-scheduler 1.36, plugins/defaultbinder/default_binder.go."""

    name = "DefaultBinder"
    traits = Traits(keeps_deadline=True)

    def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> Coroutine[Any, Any, BindReply]:
        return binder.post(request, timeout_s=timeout_s)
