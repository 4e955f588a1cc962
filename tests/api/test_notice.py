"""What users must be told of a model: that it is a toy."""

from lanewise.api.shared.state import ModelCard
from toy_server import toy_server


def test_a_notice_is_told_with_the_model_and_only_where_there_is_one():
    with toy_server(card=ModelCard(notice="This is a toy.")) as server:
        (model,) = server.client.get("/v1/models").json()["data"]
        assert model["notice"] == "This is a toy."
    with toy_server() as server:
        (model,) = server.client.get("/v1/models").json()["data"]
        assert "notice" not in model
