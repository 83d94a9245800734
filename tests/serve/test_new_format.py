"""A new wire format is one module with `routes` and one entry in `app.FORMATS`: this file is such a module."""

from fastapi import APIRouter, Request
from foreign import serving

from guerdon.serve import app
from guerdon.serve.errors import ERRORS
from guerdon.serve.wires import wire
from guerdon.serve.wires.wire_text import PromptResponse

routes = APIRouter(tags=["toy"], responses=ERRORS)


class ToyRequest(wire.ForeignBody):
    """A question and its answers."""

    question: str
    answers: list[str]


@routes.post("/toy", openapi_extra=wire.json_body(ToyRequest, toy={"question": "3+5=?", "answers": ["8"]}))
async def toy(request: Request) -> list[float | None]:
    """One number per answer, null if it failed."""
    body = await wire.read_body(request, ToyRequest)
    queue = wire.models_of(request).get("orm")
    wire.check_texts(queue.limits, body.answers)
    pairs = [PromptResponse(body.question, answer) for answer in body.answers]
    scores = await wire.judge_texts(queue, pairs, wire.UrlOptions())
    return wire.values_or_null([wire.value_of(one.score) for one in scores])


def test_a_new_format_is_a_module_and_an_entry(monkeypatch):
    monkeypatch.setattr(app, "FORMATS", (*app.FORMATS, f"{__name__}:routes"))
    with serving(token="a-long-secret") as (client, _):
        body = {"question": "3+5=?", "answers": ["8" * 12, "???"], "unknown": 1}
        assert client.post("/toy", json=body).status_code == 401
        client.headers["Authorization"] = "Bearer a-long-secret"
        assert client.post("/toy", json=body).json() == [2.0, None]
        answer = client.post("/toy", json={"question": "q", "answers": ["???"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "failed_measurement")
        assert client.post("/toy", content=b"[").status_code == 422
        assert "/toy" in client.get("/openapi.json").json()["paths"]
