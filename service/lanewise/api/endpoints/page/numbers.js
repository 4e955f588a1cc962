// What an answer took: measured here, as the one who waits for it sees it, and counted by the server.

const SOON = 0.001; // seconds: what arrived within them came together, and says nothing about speed

const REASONS = {
  stop: "the model was done",
  length: "the limit of tokens was reached",
  tool_calls: "the model calls tools",
  content_filter: "what came was held back",
  stopped: "stopped here",
};

export class Numbers {
  /** ``context`` is how many tokens prompt and answer may have; null: unknown. */
  constructor(context) {
    this.context = context;
    this.began = performance.now();
    this.first = null;
    this.last = null;
    this.events = 0;
    this.usage = null;
    this.reason = null;
  }

  /** An event with text has come. */
  count() {
    this.last = performance.now();
    this.first ??= this.last;
    this.events += 1;
  }

  /** Name and value of each number that is known. */
  rows() {
    const rows = [];
    const tokens = this.usage?.completion_tokens ?? this.events;
    if (this.first !== null) {
      const seconds = (this.last - this.first) / 1000;
      if (tokens > 1 && seconds > SOON) rows.push(["Speed", `${rounded((tokens - 1) / seconds)} tokens/s`]);
      rows.push(["First token", `${rounded(this.first - this.began)} ms`]);
    }
    rows.push(["Answer", counted(tokens)]);
    if (this.usage) {
      const cached = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
      rows.push(["Prompt", counted(this.usage.prompt_tokens)], ["Cached", counted(cached)]);
    }
    if (this.usage && this.context) {
      const used = this.usage.prompt_tokens + tokens;
      rows.push(["Context", `${used} of ${counted(this.context)}, ${rounded((100 * used) / this.context)} %`]);
    }
    if (this.reason) rows.push(["Ended", REASONS[this.reason] ?? this.reason]);
    return rows;
  }
}

function counted(tokens) {
  return tokens === 1 ? "1 token" : `${tokens} tokens`;
}

function rounded(value) {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}
