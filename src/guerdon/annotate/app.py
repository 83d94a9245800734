"""The HTTP side of `guerdon annotate`: what the page asks for, behind the middleware of the reward server.

app = build_app(session, host="127.0.0.1", tokens={})
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guerdon.annotate.figures import figures, tables
from guerdon.annotate.judgements import FIELDS, RATED, SKIP, KeyConflictError, NoSuchItemError, NotHandedError
from guerdon.annotate.session import Session
from guerdon.errors import DataError, did_you_mean
from guerdon.models.judges.rubric import Rubric
from guerdon.pages.formats import TEMPLATES
from guerdon.pages.html_page import TEXTS
from guerdon.serve.errors import error_body
from guerdon.serve.metrics import Metrics
from guerdon.serve.middleware import PERSON, RequestMiddleware
from guerdon.settings.serve import LimitSettings

LIMITS = LimitSettings(
    max_body_bytes=65_536, max_header_bytes=16_384, max_bytes_in_flight=16 << 20, read_timeout_s=10.0
)  # fmt: skip
MOST_ITEMS = 50  # of one answer
MOST_NOTE = 4000  # characters
_KEY = re.compile(r"[A-Za-z0-9_-]{8,80}\Z")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".LICENSE": "text/plain"}
SHARED = (TEXTS, "style.css")  # with the other pages
_CODES = {404: "not_found", 405: "method_not_allowed"}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Content and media type of every file of the page, by its path: `/`, `/static/annotate.js`, ..."""
    files = [*sorted(STATIC.iterdir()), *(TEMPLATES / name for name in SHARED)]
    found = {f"/static/{path.name}": (path.read_bytes(), f"{TYPES[path.suffix]}; charset=utf-8") for path in files}
    return {"/": found.pop("/static/index.html"), **found}


class AnnotateLoad:
    """How busy the server of judgements is: it answers at once, or ends."""

    def __init__(self) -> None:
        self.draining, self.metrics = False, Metrics()

    def overload(self) -> float | None:
        """Never too busy: bodies and requests at a time have limits."""
        return None


class RefusedError(Exception):
    """A request that is answered with a status other than 200.

    Args:
        status: of the answer.
        code: a stable word for the kind of error.
        message: for the person.
        param: the field that is wrong, if there is one.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def _wrong(message: str, param: str | None = None) -> RefusedError:
    """The refusal of a request with a wrong field."""
    return RefusedError(422, "invalid_request", message, param)


class _Json(JSONResponse):
    """An answer in ASCII: texts of data may hold halves of characters, which UTF-8 cannot say."""

    def render(self, content: Any) -> bytes:
        """The bytes of a body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class _WithHeaders:
    """Adds the content policy to every answer, those of the middleware included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = {"cache-control": "no-store", **_HEADERS}
                more = [(k.encode(), v.encode()) for k, v in added.items() if k.encode() not in own]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, receive, send_with)


def build_app(session: Session, load: AnnotateLoad, *, host: str, tokens: Mapping[str, str]) -> ASGIApp:
    """The application.

    Args:
        session: what is judged, and the judgements.
        load: says when the server ends.
        host: that it listens on.
        tokens: person by token; empty: there is one person, and no token.
    """
    files = page_files()
    api = _Api(session)

    def file_of(path: str) -> Callable[[Request], Any]:
        content, media_type = files[path]

        async def answer(request: Request) -> Response:
            return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

        return answer

    routes = [
        *(Route(path, file_of(path), methods=["GET"]) for path in files),
        Route("/api/setup", api.setup, methods=["GET"]),
        Route("/api/next", api.next, methods=["GET"]),
        Route("/api/judgements", api.judge, methods=["POST"]),
        Route("/api/frames/{item}/{camera:path}/{row:int}", api.frame, methods=["GET"]),
        Route("/api/summary", api.summary, methods=["GET"]),
    ]
    handlers: Any = {RefusedError: _refused, HTTPException: _http_error, Exception: _fault}
    app: ASGIApp = Starlette(routes=routes, exception_handlers=handlers)
    app = RequestMiddleware(app, host=host, limits=LIMITS, load=load, tokens=tokens, public=("/", "/static/"))
    return _WithHeaders(app)


async def _refused(request: Request, error: Any) -> _Json:
    return _Json(error_body(str(error), error.status, error.code, error.param), error.status)


async def _http_error(request: Request, error: Any) -> _Json:
    code = _CODES.get(error.status_code, "invalid_request")
    return _Json(error_body(str(error.detail), error.status_code, code), error.status_code)


async def _fault(request: Request, error: Exception) -> _Json:
    """A fault of the server itself: its text is only logged."""
    return _Json(error_body("a fault of the server; see its log", 500, "internal_error"), 500)


class _Api:
    """The answers. One request at a time changes the judgements, and is on the disk before the next."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = asyncio.Lock()

    async def setup(self, request: Request) -> _Json:
        """What the page is about."""
        return _Json(self.session.setup_for(_person(request)))

    async def next(self, request: Request) -> _Json:
        """The next items of the person."""
        count = request.query_params.get("count", "1")
        is_number = len(count) < 10 and count.isascii() and count.isdigit()
        if not (is_number and 1 <= int(count) <= MOST_ITEMS):
            raise _wrong(f"count is a number from 1 to {MOST_ITEMS}", "count")
        person = _person(request)
        async with self._lock:
            tickets = await self._on_disk(self.session.judgements.next, person, int(count))
            left = self._progress(person)
        return _Json({"items": [self.session.shown(ticket) for ticket in tickets], **left})

    async def judge(self, request: Request) -> _Json:
        """Keep a judgement, or take one back."""
        content = await _content(request)
        person = _person(request)
        async with self._lock:
            try:
                answer = await self._kept(person, content)
            except KeyConflictError:
                why = f"the key {content['key']!r} was used for another judgement; make a new one"
                raise RefusedError(409, "conflict", why, "key") from None
            except NoSuchItemError:
                what = "judgement of yours with this key" if "undo" in content else "such item in the data"
                raise RefusedError(404, "not_found", f"there is no {what}") from None
            except NotHandedError as error:
                code = "already_judged" if error.judged else "not_handed"
                why = "you have judged it already; take that back first" if error.judged else "it was not given to you"
                raise RefusedError(409, code, why, "item") from None
            return _Json({**answer, **self._progress(person)})

    async def _kept(self, person: str, content: dict[str, Any]) -> dict[str, Any]:
        if "undo" in content:
            one = await self._on_disk(self.session.judgements.undo, person, content["key"], content["undo"])
            return {"undone": None if one is None else self.session.undone(one)}
        checked = _checked(content, self.session)
        return {"stored": await self._on_disk(self.session.judgements.judge, person, checked)}

    async def _on_disk(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function that writes; a full disk is said, and nothing has changed."""
        try:
            return await asyncio.to_thread(function, *arguments)
        except DataError as error:
            raise RefusedError(507, "disk_full", f"it cannot be stored: {error}") from error

    def _progress(self, person: str) -> dict[str, int]:
        judgements = self.session.judgements
        return {"done": judgements.done(person), "left": judgements.left(person)}

    async def frame(self, request: Request) -> Response:
        """A picture of an episode."""
        where = request.path_params
        try:
            data = await self.session.picture(where["item"], where["camera"], where["row"])
        except DataError as error:
            raise RefusedError(422, "undecodable", str(error)) from error
        if data is None:
            raise RefusedError(404, "not_found", "there is no such picture")
        return Response(data, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})

    async def summary(self, request: Request) -> _Json:
        """Figures about the judgements so far."""
        found = await asyncio.to_thread(figures, self.session, _person(request) if self.session.tokens else None)
        return _Json({"tables": tables(found)})


def _person(request: Request) -> str:
    """Who asks; empty: the only person."""
    return str(request.scope.get(PERSON, ""))


async def _content(request: Request) -> dict[str, Any]:
    """The object in a body, with its key.

    Raises:
        RefusedError: it is something else.
    """
    try:
        content = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise _wrong("the body must be a JSON object") from None
    if not isinstance(content, dict):
        raise _wrong("the body must be a JSON object")
    if not (isinstance(content.get("key"), str) and _KEY.match(content["key"])):
        raise _wrong("key must be 8 to 80 letters, digits, _ or -", "key")
    known = ("key", "undo") if "undo" in content else ("key", "item", *FIELDS)
    for name in content:
        if name not in known:
            near = did_you_mean(name, known, quoted=True)
            raise _wrong(f"there is no field {name[:40]!r}{near}", name[:40])
    undo = content.get("undo")
    if undo is not None and not isinstance(undo, str):
        raise _wrong("undo must be the key of a judgement, or null", "undo")
    return content


def _checked(content: dict[str, Any], session: Session) -> dict[str, Any]:
    """A judgement whose fields are what they must be.

    Raises:
        RefusedError: one is not.
    """
    _check_fields(content, (*session.words, SKIP))
    item, word = content["item"], content["judgement"]
    for name, wanted_for in (("row", "success"), ("step", "wrong")):
        _check_place(name, content.get(name), session.count_of(item, name) if word == wanted_for else None)
    if session.items.kind == "steps" and word == "wrong" and content.get("step") is None:
        raise _wrong("step must be the first wrong one, from 0", "step")
    _check_scores(content.get("scores"), session.rubric if word == RATED else None)
    return {**content, "note": content.get("note") or "", "seconds": content.get("seconds")}


def _check_fields(content: Mapping[str, Any], words: Sequence[str]) -> None:
    """Refuse what every judgement has, its item, its word, a note and how long it took, where it is something else.

    Raises:
        RefusedError: it is.
    """
    item, word, note, seconds = (content.get(name) for name in ("item", "judgement", "note", "seconds"))
    if not isinstance(item, str):
        raise _wrong("item must be the name of an item", "item")
    if not isinstance(word, str) or word not in words:
        near = did_you_mean(str(word), words, quoted=True) or f"; there are {', '.join(words)}"
        raise _wrong(f"there is no judgement {str(word)[:40]!r}{near}", "judgement")
    if note is not None and not (isinstance(note, str) and len(note) <= MOST_NOTE):
        raise _wrong(f"note must be text of at most {MOST_NOTE} characters", "note")
    if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds < 1e7):
        raise _wrong("seconds must be a number, 0 or more", "seconds")


def _check_scores(scores: Any, rubric: Rubric | None) -> None:
    """Refuse scores that are not of the criteria.

    Args:
        scores: given, or None.
        rubric: with the criteria; None: this judgement has none.

    Raises:
        RefusedError: they are not.
    """
    if rubric is None:
        if scores is not None:
            raise _wrong("this judgement has no scores", "scores")
        return
    names = [one.name for one in rubric.criteria]
    if not isinstance(scores, dict) or {*scores} != {*names}:
        raise _wrong(f"scores must be an object with every criterion: {', '.join(names)}", "scores")
    for one in rubric.criteria:
        score = scores[one.name]
        is_choice = type(score) is int and 1 <= score <= len(one.choices)
        if score is not None and not is_choice:
            why = f"the score of {one.name} must be a whole number from 1 to {len(one.choices)}, or null"
            raise _wrong(why, "scores")
    if all(score is None for score in scores.values()):
        raise _wrong("no criterion has a score: that is cannot_tell", "scores")


def _check_place(name: str, value: Any, count: int | None) -> None:
    """Refuse a row or step that is none of the item.

    Args:
        name: `row` or `step`.
        value: given, or None.
        count: how many there are; None: this judgement has none.

    Raises:
        RefusedError: it is none.
    """
    if value is None:
        return
    if count is None:
        raise _wrong(f"this judgement has no {name}", name)
    if type(value) is not int or not 0 <= value < count:
        raise _wrong(f"{name} must be a whole number from 0 to {count - 1}", name)
