// Vercel's AI SDK with its provider for servers like OpenAI's: text, objects, tools, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const lanewise = createOpenAICompatible({
  name: "lanewise",
  baseURL: process.env.BASE_URL,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = lanewise(process.env.MODEL);
const prompt = "Tell me about the sea.";
const settings = { model, prompt, temperature: 0, maxRetries: 0 };
const Weather = z.object({ city: z.enum(["Paris", "Rome"]) });

test("text whole and streamed", async () => {
  const whole = await generateText({ ...settings, maxOutputTokens: 8 });
  const streamed = streamText({ ...settings, maxOutputTokens: 8 });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await streamed.usage).outputTokens, 8);
  assert.equal(await streamed.finishReason, "length");
});

test("an object whole and streamed", async () => {
  const asked = { ...settings, output: Output.object({ schema: Weather }), maxOutputTokens: 60 };
  const whole = await generateText(asked);
  const streamed = streamText(asked);
  for await (const part of streamed.partialOutputStream) assert.equal(typeof part, "object");
  assert.deepEqual(await streamed.output, whole.output);
});

test("a tool is run and its result goes back", async () => {
  const asked = [];
  const weather = tool({
    inputSchema: Weather,
    execute: async (input) => {
      asked.push(input);
      return "sunny";
    },
  });
  const firstACall = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
  const options = {
    tools: { weather },
    prepareStep: firstACall,
    stopWhen: stepCountIs(2),
    maxOutputTokens: 70,
    providerOptions: { lanewise: { parallel_tool_calls: false } },
  };
  const streamed = streamText({ ...settings, ...options });
  await streamed.consumeStream();
  const whole = await generateText({ ...settings, ...options });
  assert.equal((await streamed.steps).length, 2);
  assert.equal(await streamed.text, whole.text);
  assert.ok(asked.length >= 2);
  for (const input of asked) assert.ok(Weather.parse(input));
});

test("an overflow is an error that is not tried again", async () => {
  await assert.rejects(generateText({ ...settings, prompt: "sea ".repeat(900) }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.equal(error.isRetryable, false);
    return error.message.startsWith("This model's maximum context length is 512 tokens");
  });
});
