"""The HTTP application: the routes of all wire formats behind one middleware, with one format of errors.

A new wire format is a module with an `APIRouter`, and an entry in `FORMATS` that names it.

    app = build_app(models, settings)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from guerdon import __version__
from guerdon.plan.stages import loaded
from guerdon.serve.errors import ServeError, error_body
from guerdon.serve.media import Media
from guerdon.serve.middleware import RequestMiddleware
from guerdon.serve.served_models import ServedModels
from guerdon.serve.wires.wire import UrlOptions, unknown_key
from guerdon.settings.serve import ServeSettings

FORMATS = (
    "guerdon.serve.routes:routes",
    "guerdon.serve.wires.wire_openrlhf:routes",
    "guerdon.serve.wires.wire_vllm:routes",
    "guerdon.serve.wires.wire_seed:routes",
    "guerdon.serve.wires.wire_chat:routes",
)
"""The routes of each wire format, as texts `module:object`."""
CODES = {404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "too_large", 429: "busy"}
SHOWN = 5


def build_app(models: ServedModels, settings: ServeSettings) -> FastAPI:
    """The application.

    Args:
        models: if they are not started, the application starts them and waits until all are loaded.
        settings: token and limits.
    """
    media = Media(settings.media)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not models.started:
            models.start()
            await models.loaded()
        yield
        await models.stop()
        await asyncio.to_thread(media.close)

    app = FastAPI(
        title="guerdon",
        version=__version__,
        description="Reward models over HTTP: a score, or the reason why there is none.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.models, app.state.media = models, media
    for format_routes in FORMATS:
        app.router.routes.extend(loaded(format_routes).routes)  # an included router costs a lookup per request
    app.add_exception_handler(ServeError, _serve_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _fault)
    tokens = {} if settings.token is None else {settings.token: ""}
    app.add_middleware(RequestMiddleware, host=settings.host, limits=settings.limits, load=models, tokens=tokens)
    return app


async def _serve_error(request: Request, error: Any) -> JSONResponse:
    return JSONResponse(error_body(str(error), error.status, error.code, error.param), error.status, error.headers)


async def validation_error(request: Request, error: Any) -> JSONResponse:
    """The problems of a request, without the wrong values: they may be large, or not JSON at all."""
    found = error.errors()
    lines = []
    for problem in found[:SHOWN]:
        where, words = problem["loc"], problem["msg"]
        if problem["type"] == "extra_forbidden":
            words = unknown_key(UrlOptions if where[0] == "query" else error.body, where[1:])
        lines.append(f"{_place(where)}: {words}")
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    param = _place(found[0]["loc"]) if found else None
    return JSONResponse(error_body("; ".join(lines), 422, "invalid_request", param), 422)


async def _http_error(request: Request, error: Any) -> JSONResponse:
    code = CODES.get(error.status_code, "invalid_request" if error.status_code < 500 else "internal_error")
    return JSONResponse(error_body(str(error.detail), error.status_code, code), error.status_code, error.headers)


async def _fault(request: Request, error: Exception) -> JSONResponse:
    """A fault of the server itself: its text is only logged."""
    return JSONResponse(error_body("a fault of the server; see its log", 500, "internal_error"), 500)


def _place(where: tuple[int | str, ...]) -> str:
    """A path such as items[3].steps; the first part of `where` is the kind of place, such as the body."""
    parts = where[1:] if len(where) > 1 and where[0] in ("body", "query", "path") else where
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    return text if len(text) <= 100 else text[:97] + "..."
