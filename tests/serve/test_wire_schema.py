"""Schemathesis over the OpenAPI of the foreign wire formats, against a real server process.

Ten thousand requests to all routes, with an eye on memory, are in `test_serve_targets.py`.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from processes import start_server
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
ROUTES = ["/score", "/get_reward", "/rm", "/classify", "/pooling", "/v1/models", "/v1/chat/completions"]
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
def foreign_schema(fuzzed):
    found = schemathesis.openapi.from_url(fuzzed.url + "/openapi.json")
    return found.include(path=ROUTES)


def fuzz(schema, path, examples):
    """Send generated requests, valid and not, and check every answer."""
    (operation,) = schema[path].values()

    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)))
    @settings(max_examples=examples, **QUIET)
    def check(case):
        case.call_and_validate(checks=CHECKS)

    check()


@pytest.mark.parametrize("path", ROUTES)
def test_answers_are_what_the_document_says(foreign_schema, path):
    fuzz(foreign_schema, path, 2 if path == "/v1/models" else 25)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", ROUTES[:5] + ROUTES[6:])
def test_many_answers_are_what_the_document_says(foreign_schema, path):
    fuzz(foreign_schema, path, 300)


def test_every_route_is_in_the_document(fuzzed):
    document = fuzzed.get("/openapi.json").json()
    assert set(ROUTES) <= set(document["paths"])
    assert "#/$defs" not in fuzzed.get("/openapi.json").text
    for path in ROUTES:
        for operation in document["paths"][path].values():
            body = operation.get("requestBody")
            assert body is None or "application/json" in body["content"]
            assert {"200", "401", "404", "413", "422", "429", "503", "504"} <= set(operation["responses"])
