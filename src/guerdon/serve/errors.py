"""Errors of the server, with their HTTP status.

Each is answered as a JSON object in the form of OpenAI's errors: `{"error": {"message", "type", "param", "code"}}`.
Messages are for clients: they never contain the text of an exception, a path or a token.

    raise UnknownModel("prm", known=("orm",))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from guerdon.errors import GuerdonError


class ServeError(GuerdonError):
    """A request that is answered with a status other than 200.

    Args:
        message: one line for the client.
        retry_after_s: seconds after which to try again; None: as the class has it.
        param: the field that is wrong, if there is one.

    Attributes:
        status: HTTP status of the answer.
        code: a stable word for the kind of error.
        retry_after_s: seconds after which to try again; None: that would not help.
    """

    status = 500
    code = "internal_error"
    retry_after_s: float | None = None

    def __init__(self, message: str, retry_after_s: float | None = None, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, if trying again may help."""
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class UnknownModel(ServeError):
    """No model of that name."""

    status, code = 404, "model_not_found"

    def __init__(self, name: str, *, known: Sequence[str], param: str = "model") -> None:
        shown = name if len(name) <= 60 else name[:57] + "..."
        super().__init__(f"there is no model {shown!r} here; there are {', '.join(known)}", param=param)


class BadRequest(ServeError):
    """The request can be parsed, and asks for something that does not exist or is not possible."""

    status, code = 422, "invalid_request"


class TwoNames(BadRequest):
    """Two fields of a request are names for the same thing."""

    status = 400


class Conflict(ServeError):
    """The request contradicts an earlier one."""

    status, code = 409, "conflict"


class Busy(ServeError):
    """The queue is full."""

    status, code, retry_after_s = 429, "busy", 1.0


class NotReady(ServeError):
    """The model is being loaded, or the server is shutting down."""

    status, code, retry_after_s = 503, "not_ready", 1.0


class DeadlineExceeded(ServeError):
    """The scores were not ready in time. They are remembered once they are: the same request may get them later."""

    status, code, retry_after_s = 504, "deadline_exceeded", 1.0


class UpdateFailed(ServeError):
    """An update was not learned, or not kept; the model is as it was before."""

    status, code = 500, "update_failed"


class BrokenModel(UpdateFailed):
    """An update failed, and the state before it could not be restored."""


class ReloadFailed(ServeError):
    """The model could not be loaded again; the old one stays."""

    status, code = 500, "reload_failed"


class ModelFailed(GuerdonError):
    """A model raised an exception. Clients never see it: its items become failures, the text is logged."""


class ModelHung(ModelFailed):
    """A call of a copy of a model did not end in time; the process of the copy was killed. Clients get the message."""


class ErrorDetail(BaseModel):
    """An error, in the form of OpenAI's."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """Every answer with a status other than 200."""

    error: ErrorDetail


_STATUSES = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": HTTPStatus(status).phrase} for status in _STATUSES
}


def error_body(message: str, status: int, code: str, param: str | None = None) -> dict[str, object]:
    """The JSON of an error; its `type` is OpenAI's."""
    by_status = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = by_status.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
