"""Views of plugins: the documents of `/api/v1/VIEW/NAME`.

The composition root implements ViewSource over the plugins of all domains; the server calls it and depends on no
plugin.
"""

from __future__ import annotations

from typing import Protocol

from multisched.framework.views import ViewQuery


class ViewSource(Protocol):
    """Makes documents off the loop.

    A Protocol because `observe` does not import the shell; implemented there (`ProgramViews`).
    """

    async def document(self, view: str, query: ViewQuery) -> bytes:
        """Returns JSON. The option `domain` selects the plugin if several domains have the view.

        Raises framework.views.NoViewError, and NotLeadingError for a domain that another replica leads.
        """
        ...
