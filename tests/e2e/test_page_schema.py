"""Schemas of answers on the page, checked before they are sent, in a real browser."""

import json

from playwright.sync_api import expect

WRONG = (
    ("[1]", "the schema is not an object"),
    ('{"type": "text"}', "the schema.type is not one of object"),
    ('{"properties": {"a": {"type": ["null", "int"]}}}', "the schema.properties.a.type"),
    ('{"properties": []}', "the schema.properties is not an object"),
    ('{"required": "a"}', "the schema.required is not a list of texts"),
    ('{"items": {"anyOf": [{}, {"enum": 1}]}}', "the schema.items.anyOf[1].enum"),
    ('{"$defs": {"b": {"not": 3}}}', "the schema.$defs.b.not is not an object"),
)


def test_a_schema_that_is_none_is_told_where_and_not_sent(seen):
    page = seen.page
    page.select_option("[name=structure]", "json_schema")
    for text, why in WRONG:
        page.fill("[name=pattern]", text)
        seen.send("the")
        expect(page.locator("#pattern-error")).to_contain_text(why)
    assert page.locator(".turn").count() == 0
    right = {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"], "enum": [1, None]}, "b": True},
        "required": ["a"],
        "additionalProperties": False,
    }
    page.fill("[name=pattern]", json.dumps(right))
    seen.answer_with('{"a": 1}')
    with page.expect_request("**/v1/chat/completions") as request:
        seen.send("the")
    assert request.value.post_data_json["response_format"]["json_schema"]["schema"] == right
    seen.wait_for_answer()
