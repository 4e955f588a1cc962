"""The document of the API is true: whatever it allows is answered as it says."""

from dataclasses import replace

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import validate
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lanewise.api.endpoints.documents import describe
from lanewise.api.endpoints.table import ENDPOINTS
from topics import cases
from toy_server import CONFIG, DEFAULTS, toy_server

EXAMPLES = cases(200, 10_000) // sum(not endpoint.is_missing for endpoint in ENDPOINTS)
CHECKS: list[CheckFunction] = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server():
    config = replace(CONFIG, max_queued_requests=64)
    with toy_server(config, replace(DEFAULTS, max_body_bytes=1 << 20)) as running:
        yield running


DOCUMENT = describe("0")
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_what_the_document_allows_is_answered_as_it_says(operation, server):
    @settings(
        max_examples=EXAMPLES if operation.body else 1,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy())
    def check(case):
        response = case.call(base_url=server.url, timeout=60)
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 500 or response.status_code == 501, response.text

    check()


def test_the_document_is_valid_and_has_every_endpoint():
    validate(DOCUMENT)
    for endpoint in ENDPOINTS:
        if endpoint.method == "HEAD":
            continue
        operation = DOCUMENT["paths"][endpoint.path.replace(":path}", "}")][endpoint.method.lower()]
        statuses = set(operation["responses"])
        assert statuses, endpoint.path
        assert ("requestBody" in operation) == (endpoint.body is not None)
        assert endpoint.public or "401" in statuses
        assert "422" not in statuses
        assert "200" in statuses or statuses & {"501", "400"}
