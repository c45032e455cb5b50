"""The one session of HTTP requests that otel-bridge makes itself, with proxies from the environment and no other login.

The library requests reads ``~/.netrc`` and replaces a token by what it finds there; ``wandb login``
writes that file. It also keeps headers of its caller when an answer redirects to another server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import requests
from requests.auth import HTTPBasicAuth
from requests.utils import default_headers, get_auth_from_url
from urllib3.exceptions import MaxRetryError

_NO_CREDENTIALS = frozenset(name.lower() for name in default_headers()) | {
    "content-type",
    "content-length",
}


class HttpSession(requests.Session):
    """Sends the credentials of its own headers and of the address, and only to the server that they are for."""

    def __init__(self) -> None:
        super().__init__()
        # While this is set, requests does not look into netrc (requests 2.32,
        # Session.prepare_request).
        self.auth = _login_of_address

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Remove the caller's headers from a request that a redirect leads to another server.

        All of them but the usual ones, because a credential may be in a header of any name.
        """
        old_url = response.request.url or ""
        is_other_server = cast("Callable[[str, str], bool]", self.should_strip_auth)  # pyright: ignore[reportUnknownMemberType]  # no stub
        if not is_other_server(old_url, prepared_request.url or ""):
            return
        # requests itself removes only ``Authorization``, and credentials may be in any header.
        for name in list(prepared_request.headers):
            if name.lower() not in _NO_CREDENTIALS:
                del prepared_request.headers[name]


def cause_of(error: requests.RequestException) -> str:
    """Return why a request got no answer, without its path and query, which may hold a secret.

    The error of requests begins with them, and its cause comes behind.
    """
    wrapper: object = error.args[0] if error.args else None
    # urllib3's error of a failed connection has the cause, such as a refused one or TLS.
    if isinstance(wrapper, MaxRetryError) and wrapper.reason is not None:
        return str(wrapper.reason)
    return str(error)


def _login_of_address(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Log in with the user and password that the address holds, if there are any."""
    user, password = get_auth_from_url(request.url or "")
    if user or password:
        return cast("requests.PreparedRequest", HTTPBasicAuth(user, password)(request))
    return request
