"""Schemathesis over the OpenAPI of all wire formats, against a real server process.

Ten thousand requests to all routes, with an eye on memory, are in `test_serve_targets.py`.
"""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from processes import start_server
from pydantic import ValidationError
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from guerdon.serve.routes import OptionFields, RewardItem, RewardsRequest
from guerdon.serve.wires.wire_chat import ChatCompletionRequest
from guerdon.serve.wires.wire_seed import ScoreRequest
from guerdon.serve.wires.wire_vllm import PoolRequest
from tables import cases


def no_server_error(context, response, case):
    """No 5xx, but for a deadline so short that it is over at once: 504, as documented."""
    if response.status_code == 504 and isinstance(case.body, dict) and (case.body.get("deadline_s") or 9.0) < 1.0:
        return None
    return not_a_server_error(context, response, case)


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
ROUTES = ["/score", "/get_reward", "/rm", "/classify", "/pooling", "/v1/models", "/v1/chat/completions"]
OURS = ["/v1/rewards", "/v1/update"]
QUIET = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
    "database": None,
    "derandomize": True,
}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "videos").mkdir()
    models = {name: {"custom_backend": f"foreign_models:{name}"} for name in ("orm", "prm", "video", "frame")}
    running = start_server(folder, models=models, default="orm", media={"root": str(folder / "videos")})
    yield running
    assert "Traceback" not in running.log
    assert running.stop() == 0


@pytest.fixture(scope="module")
def wire_schema(fuzzed):
    found = schemathesis.openapi.from_url(fuzzed.url + "/openapi.json")
    return found.include(path=[*ROUTES, *OURS])


def fuzz(schema, path, examples):
    """Send generated requests, valid and not, and check every answer."""
    cases = [operation.as_strategy(generation_mode=m) for operation in schema[path].values() for m in GenerationMode]

    @given(case=st.one_of(*cases))
    @settings(max_examples=examples, **QUIET)
    def check(case):
        response = case.call()
        late = response.status_code == 504  # deadline_s may be 1e-300
        case.validate_response(response, checks=[c for c in CHECKS if not (late and c is not_a_server_error)])

    check()


@pytest.mark.hostile("http")
@pytest.mark.parametrize("path", [*ROUTES, *OURS])
def test_answers_are_what_the_document_says(wire_schema, path):
    fuzz(wire_schema, path, 2 if path == "/v1/models" else 25)


@pytest.mark.hostile("http")
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", [*ROUTES[:5], *ROUTES[6:], *OURS])
def test_many_answers_are_what_the_document_says(wire_schema, path):
    fuzz(wire_schema, path, 300)


@cases(
    ("shape", "key", "refused", "taken"),
    [
        (PoolRequest, "activation", (0.0, 1, "true", "no"), (True, False, None)),
        (PoolRequest, "use_activation", (0.0, 1, "true", "no"), (True, False, None)),
        (ChatCompletionRequest, "stream", (0, 0.0, "false", True), (False, None)),
        (ChatCompletionRequest, "n", ("1", True, 2), (1, None)),
        (ChatCompletionRequest, "views", ("2", True, 2.5, 9), (2, 2.0, None)),
        (ScoreRequest, "nframes", ("2", True, None, 0), (2, 2.0)),
        (ScoreRequest, "max_pixels", ("784", True, None, 783), (784, 784.0)),
        (RewardItem, "outcome", (0, 1.0, "yes", "off"), (True, False, None)),
        (OptionFields, "nframes", ("2", True, 129), (2, 2.0, None)),
        (OptionFields, "max_pixels", ("784", True, 783), (784, 784.0, None)),
        (RewardsRequest, "deadline_s", ("2", True, 0), (2, 2.5, None)),
    ],
)  # fmt: skip
def test_numbers_and_flags_are_what_the_document_calls_so(shape, key, refused, taken):
    def at_key(value):
        try:
            shape.model_validate_json(json.dumps({key: value}))
        except ValidationError as error:
            return [problem["msg"] for problem in error.errors() if problem["loc"][0] == key]
        return []

    assert [value for value in refused if not at_key(value)] == []
    assert [value for value in taken if at_key(value)] == []


def test_every_route_is_in_the_document(fuzzed):
    document = fuzzed.get("/openapi.json").json()
    assert set(ROUTES) <= set(document["paths"])
    assert "#/$defs" not in fuzzed.get("/openapi.json").text
    for path in ROUTES:
        for operation in document["paths"][path].values():
            body = operation.get("requestBody")
            assert body is None or "application/json" in body["content"]
            assert {"200", "401", "404", "413", "422", "429", "503", "504"} <= set(operation["responses"])
