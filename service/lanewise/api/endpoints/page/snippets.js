// A request as a command and as a program, which can be pasted and run as they are.

const VARIABLE = "LANEWISE_API_KEY";
// What OpenAI's client knows by name; it sends all else when that stands in extra_body.
const KNOWN = new Set([
  "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed",
  "presence_penalty", "frequency_penalty", "stop", "logprobs", "top_logprobs", "response_format", "reasoning_effort",
]);

export function curlOf(url, body) {
  return [
    `curl --no-buffer ${quoted(url)} \\`,
    "  --header 'Content-Type: application/json' \\",
    `  --header "Authorization: Bearer \${${VARIABLE}:-none}" \\`,
    `  --data ${quoted(JSON.stringify(body, null, 2))}`,
  ].join("\n");
}

export function pythonOf(base, isChat, body) {
  const call = isChat ? "chat.completions" : "completions";
  const text = isChat ? "chunk.choices[0].delta.content or \"\"" : "chunk.choices[0].text";
  const own = Object.entries(body).filter(([name]) => KNOWN.has(name));
  const extra = Object.entries(body).filter(([name]) => !KNOWN.has(name));
  const lines = own.map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (extra.length) lines.push(`    extra_body=${literal(Object.fromEntries(extra), 1)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(base, 0)}, api_key=os.environ.get("${VARIABLE}", "none"))`,
    `stream = client.${call}.create(`,
    ...lines,
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    `        print(${text}, end="", flush=True)`,
    "print()",
  ].join("\n");
}

/** A word of a POSIX shell. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A value as Python writes it; strings are written alike in JSON and Python. */
function literal(value, depth) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const items = isList
    ? value.map((item) => literal(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (items.length === 0) return open + close;
  const indent = "    ".repeat(depth + 1);
  return `${open}\n${items.map((item) => `${indent}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
