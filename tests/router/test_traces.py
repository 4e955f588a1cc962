"""One trace goes through the router and the server of a model."""

from otlp_collector import collecting
from toy_router import toy_router

MIB = 1 << 20
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_the_span_of_a_model_is_below_the_routers(tmp_path):
    models = {
        "models": [{"name": "a", "model": "a.gguf", "memory": 200 * MIB}],
        "memory": 300 * MIB,
    }
    with collecting() as (endpoint, spans):
        with toy_router(tmp_path, models, otlp_traces_endpoint=endpoint) as router:
            ask = {"model": "a", "prompt": "ab", "max_tokens": 2}
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            answer = router.client.post("/v1/completions", json=ask, headers=headers)
            assert answer.status_code == 200
            told = answer.headers.get_list("traceresponse")
            assert router.stop() == 0  # what is left is sent then
        found = [span for _, span in spans if span.name == "POST /v1/completions"]
    assert [span.trace_id.hex() for span in found] == [TRACE, TRACE]
    [outer] = [span for span in found if span.parent_span_id.hex() == PARENT]
    [inner] = [span for span in found if span is not outer]
    assert inner.parent_span_id == outer.span_id
    assert told == [f"00-{TRACE}-{outer.span_id.hex()}-01"]
    names = {span.name for _, span in spans if span.trace_id.hex() == TRACE}
    assert {"queue", "prefill", "decode"} <= names
