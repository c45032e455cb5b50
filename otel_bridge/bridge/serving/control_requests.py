"""Carries out the control requests of one run folder, each once, and deletes what is done. One thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otel_bridge.journal.control import ControlRequest, delete_control_request, receive_control
from otel_bridge.journal.folder import RunFolder


class ControlRequests:
    """Receives the requests to one run's bridge.

    A request stays on disk until it is done, so that a killed bridge leaves it to the next one. A handover is deleted
    first: the bridge that requested it must not find it.

    Args:
        folder: The run folder.
        actions: Kind to the function that carries out a request of that kind.
        is_done: Returns whether a request that was carried out is done.
        malformed: Called with the problem of a request that cannot be carried out.
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
        """Return whether carrying out a request failed, so that the request is received again."""
        return self._unanswered

    def receive(self) -> None:
        """Carry out every new request; an exception of an action leaves the request unanswered."""
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
        """Delete the requests that are done; with *all_of* also those that cannot be carried out now."""
        for name, request in list(self._acted_on.items()):
            if all_of or self._is_done(request):
                delete_control_request(self._folder, request)
                if not (self._folder.control_dir / name).exists():  # otherwise it would be carried out again
                    del self._acted_on[name]
