"""The HTTP application: the routes of every wire format behind one guard, with one shape of errors.

It does not know how a model works, or how the server is started.

    app = build_app(engine, settings)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from guerdon import __version__
from guerdon.serve import describe, routes, wire_chat, wire_openrlhf, wire_seed, wire_vllm
from guerdon.serve.engine import Engine
from guerdon.serve.errors import ServeError, error_body
from guerdon.serve.media import Media
from guerdon.serve.middleware import Guard
from guerdon.settings.serve import ServeSettings

CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "too_large"}
SHOWN = 5


def build_app(engine: Engine, settings: ServeSettings) -> FastAPI:
    """Everything that answers requests.

    Args:
        engine: the models. Where it has not been started, the application starts it and waits until all are loaded.
        settings: token and limits.
    """
    media = Media.of(settings.media)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not engine.started:
            engine.start()
            await engine.loaded()
        yield
        await engine.stop()
        await asyncio.to_thread(media.close)

    app = FastAPI(
        title="guerdon",
        version=__version__,
        description="Reward models by HTTP: a score, or the reason why there is none.",
        lifespan=lifespan,
        redoc_url=None,
    )
    for router in (
        describe.router(engine, settings),
        routes.router(engine, settings, media),
        wire_openrlhf.router(engine, settings),
        wire_vllm.router(engine, settings),
        wire_seed.router(engine, settings, media),
        wire_chat.router(engine, settings, media),
    ):
        app.router.routes.extend(router.routes)  # included, each would be looked up anew for every request
    app.add_exception_handler(ServeError, _serve_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _fault)
    app.add_middleware(
        Guard, settings=settings, metrics=engine.metrics, draining=lambda: engine.draining, overload=engine.overload
    )
    return app


def answer_error(
    message: str, status: int, code: str, *, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error as every route gives it."""
    return JSONResponse(error_body(message, status, code, param), status, headers)


async def _serve_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServeError)
    return answer_error(str(error), error.status, error.code, param=error.param, headers=error.headers)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """What is wrong with the request, without what stood there: it may be large, or no JSON at all."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    lines = [f"{_place(problem['loc'])}: {problem['msg']}" for problem in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    param = _place(found[0]["loc"]) if found else None
    return answer_error("; ".join(lines), 422, "invalid_request", param=param)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "invalid_request" if error.status_code < 500 else "internal_error")
    code = "busy" if error.status_code == 429 else code
    headers = dict(error.headers) if error.headers else None
    return answer_error(str(error.detail), error.status_code, code, headers=headers)


async def _fault(request: Request, error: Exception) -> JSONResponse:
    """A fault of the server itself: its text stays in the log."""
    return answer_error("the server made a mistake; its log says which", 500, "internal_error")


def _place(where: tuple[int | str, ...]) -> str:
    """A path such as items[3].steps; the first part says that it is the body."""
    parts = where[1:] if len(where) > 1 and where[0] in ("body", "query", "path") else where
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    return text if len(text) <= 100 else text[:97] + "..."
