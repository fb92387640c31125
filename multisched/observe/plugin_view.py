"""What plugins show of what they know: the answers of `/api/v1/VIEW/NAME`.

The composition root implements ViewSource over the plugins of all domains; the server asks it and knows no plugin.
"""

from __future__ import annotations

from typing import Protocol

from multisched.framework.views import ViewQuery


class ViewSource(Protocol):
    """Makes documents off the loop.

    Border: the shell has it (`ProgramViews`), above `observe`.
    """

    async def document(self, view: str, query: ViewQuery) -> bytes:
        """JSON. The option `domain` says whose plugin is meant, where several have the view.

        Raises framework.views.NoViewError, and NotLeadingError for a domain that is not led here.
        """
        ...
