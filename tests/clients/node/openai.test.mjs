// The openai package for Node: chat, completions, parsing, tools streamed, errors as its classes.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.MODEL;
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me about the sea." }];
const Weather = z.object({ city: z.enum(["Paris", "Rome"]), sunny: z.boolean() });

test("models", async () => {
  const names = [];
  for await (const found of client.models.list()) names.push(found.id);
  assert.deepEqual(names, [model]);
});

test("chat whole and streamed, with logprobs", async () => {
  const ask = { model, messages, max_tokens: 8, seed: 5, logprobs: true };
  const whole = await client.chat.completions.create(ask);
  const stream = await client.chat.completions.create({
    ...ask,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(whole.choices[0].logprobs.content.length, 8);
  assert.equal(usage.completion_tokens, 8);
});

test("completions", async () => {
  const answer = await client.completions.create({ model, prompt: "The sea", max_tokens: 4, n: 2 });
  assert.equal(answer.choices.length, 2);
});

test("an answer is parsed", async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const answer = await client.chat.completions.parse({ model, messages, response_format, max_tokens: 60 });
  assert.equal(typeof answer.choices[0].message.parsed.sunny, "boolean");
});

test("a tool call, streamed by the package's own helper", async () => {
  const tool = zodFunction({ name: "weather", parameters: Weather });
  const ask = { model, messages, tools: [tool], tool_choice: "required", parallel_tool_calls: false };
  const fields = { ...ask, temperature: 0, max_tokens: 90 };
  const whole = await client.chat.completions.parse(fields);
  const final = await client.chat.completions.stream(fields).finalChatCompletion();
  const [streamed] = final.choices[0].message.tool_calls;
  const [call] = whole.choices[0].message.tool_calls;
  assert.equal(streamed.function.arguments, call.function.arguments);
  assert.ok(["Paris", "Rome"].includes(streamed.function.parsed_arguments.city));
});

test("errors are the package's own", async () => {
  const ask = { model, messages: [{ role: "user", content: "sea ".repeat(900) }] };
  const long = (error) => error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded";
  await assert.rejects(client.chat.completions.create(ask), long);
  await assert.rejects(client.chat.completions.create({ ...ask, stream: true }), long);
  await assert.rejects(client.chat.completions.create({ model: "another", messages }), OpenAI.NotFoundError);
});

test("a stream is left", async () => {
  const stream = await client.completions.create({ model, prompt: "The sea", max_tokens: 400, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.choices[0]);
    break;
  }
  assert.ok(stream.controller.signal.aborted);
});
