"""Act on the control requests of one run folder, each once, and delete what is done. One thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otel_bridge.journal.control import ControlRequest, delete_control_request, receive_control
from otel_bridge.journal.folder import RunFolder


class ControlRequests:
    """The requests to one run's bridge.

    A request stays on disk until it is done, so that a bridge that is killed before leaves it to the next one. A
    handover is deleted first: the bridge that asked for it must not find it.

    Args:
        folder: The run folder.
        actions: Kind to what acts on a request of it.
        is_done: Returns whether a request that was acted on is done.
        malformed: Takes what is wrong with a request that cannot be followed.
    """

    def __init__(
        self,
        folder: RunFolder,
        actions: Mapping[str, Callable[[ControlRequest], None]],
        *,
        is_done: Callable[[ControlRequest], bool],
        malformed: Callable[[str], None],
    ) -> None:
        self._folder, self._actions, self._is_done, self._malformed = folder, actions, is_done, malformed
        self._acted_on: dict[str, ControlRequest] = {}
        self._unanswered = False

    @property
    def unanswered(self) -> bool:
        """Whether acting on a request failed, so that it comes again."""
        return self._unanswered

    def receive(self) -> None:
        """Act on every new request; what an action raises leaves the request unanswered."""
        found = receive_control(self._folder, self._malformed, self._acted_on)
        self._unanswered = bool(found)
        for request in found:
            if request.kind != "handover" or delete_control_request(self._folder, request):
                self._actions[request.kind](request)
                self._acted_on[request.name] = request
        self._unanswered = False
        if self._acted_on:
            self.delete_done()

    def delete_done(self, *, all_of: bool = False) -> None:
        """Delete the requests that are done; with *all_of* also those that nobody can do now."""
        for name, request in list(self._acted_on.items()):
            if all_of or self._is_done(request):
                delete_control_request(self._folder, request)
                if not (self._folder.control_dir / name).exists():  # else it would be acted on again
                    del self._acted_on[name]
