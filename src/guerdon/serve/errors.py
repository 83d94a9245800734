"""Why a request got no answer: what the engine and the wire formats raise, with the status that clients see.

Each becomes one JSON object in the shape that OpenAI's clients read: `{"error": {"message", "type", "param",
"code"}}`. Messages are for clients: they never hold the text of an exception, a path or a token. This module does
not know any route.

    raise UnknownModel("prm", known=("orm",))
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from guerdon.errors import GuerdonError


class ServeError(GuerdonError):
    """A request that is answered with a status other than 200.

    Args:
        message: one line for the client.
        param: the field that is wrong, where there is one.

    Attributes:
        status: of the HTTP answer.
        code: a stable word to tell errors apart.
        retry_after_s: when to come again; None where that would not help.
    """

    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, where coming again helps."""
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class UnknownModel(ServeError):
    """No model of that name."""

    status, code = 404, "model_not_found"

    def __init__(self, name: str, *, known: Sequence[str], param: str = "model") -> None:
        shown = name if len(name) <= 60 else name[:57] + "..."
        super().__init__(f"there is no model {shown!r} here; there are {', '.join(known)}", param=param)


class BadRequest(ServeError):
    """The request can be read, and asks for something that does not exist or cannot be."""

    status, code = 422, "invalid_request"


class Conflict(ServeError):
    """The request contradicts an earlier one."""

    status, code = 409, "conflict"


class Busy(ServeError):
    """There is no room in the queue."""

    status, code = 429, "busy"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(ServeError):
    """The model is being loaded, or the server is about to end."""

    status, code = 503, "not_ready"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(ServeError):
    """The scores were not there in time. What was being scored is remembered: the same request may find it."""

    status, code = 504, "deadline_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retry_after_s = 1.0


class UpdateFailed(ServeError):
    """An update was not learnt, or not kept; the model is as it was before."""

    status, code = 500, "update_failed"


class ReloadFailed(ServeError):
    """The model could not be loaded again; the old one goes on."""

    status, code = 500, "reload_failed"


class ModelFailed(GuerdonError):
    """A model raised. Never shown to a client: its items become failures, the text goes to the log."""


def error_type(status: int) -> str:
    """OpenAI's word for a class of errors."""
    by_status = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return by_status.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(message: str, status: int, code: str, param: str | None = None) -> dict[str, object]:
    """The JSON of an error."""
    return {"error": {"message": message, "type": error_type(status), "param": param, "code": code}}
