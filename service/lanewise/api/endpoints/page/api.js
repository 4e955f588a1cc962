// The server's API: requests with the key, errors as exceptions, streams as sequences of objects.

import { load, save } from "./storage.js";

// Relative to this file, so that the page works below a prefix of a proxy too.
const BASE = new URL("../", import.meta.url);
const END_OF_EVENT = /\r?\n\r?\n/;

let key = load("key");

/** An error that the server told, with the status of its answer; 0 when it was told in a stream. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answers with status ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

export function urlOf(path) {
  return new URL(path, BASE).href;
}

export function hasKey() {
  return key !== null;
}

export function setKey(text) {
  key = text || null;
  save("key", key);
}

async function answerOf(path, options = {}) {
  const headers = { ...options.headers };
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(urlOf(path), { ...options, headers });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, body.error);
}

export async function get(path) {
  return (await answerOf(path)).json();
}

export async function post(path, body) {
  return (await sent(path, body)).json();
}

function sent(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return answerOf(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** Send a request that streams; gives the object of each event as it comes. */
export async function* stream(path, body, signal) {
  const answer = await sent(path, body, signal);
  for await (const data of eventsOf(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(0, event.error);
    yield event;
  }
  throw new Error("the answer ended in the middle");
}

/** The data of each event of a stream. */
export async function* eventsOf(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split(END_OF_EVENT);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
