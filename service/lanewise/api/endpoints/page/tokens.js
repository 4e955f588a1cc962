// Tokens with their probabilities: from the two forms of the API to one, and as shaded text.

const LEVELS = [0.9, 0.7, 0.5, 0.3, 0.1]; // a token below the last is shaded most
const NAMED_BYTES = /^bytes:((?:\\x[0-9a-f]{2})+)$/;
const decoder = new TextDecoder("utf-8", { fatal: true });

/** The tokens of one event: bytes, log-probability, and the likeliest with theirs. */
export function tokensOf(choice) {
  const given = choice.logprobs;
  if (!given) return [];
  if (given.content) {
    return given.content.map((one) => ({
      bytes: one.bytes ?? bytesOf(one.token),
      logprob: one.logprob,
      top: one.top_logprobs.map((other) => [other.token, other.logprob]),
    }));
  }
  return given.tokens.map((name, index) => ({
    bytes: bytesOf(name),
    logprob: given.token_logprobs[index] ?? 0,
    top: Object.entries(given.top_logprobs?.[index] ?? {}),
  }));
}

function bytesOf(name) {
  const named = NAMED_BYTES.exec(name);
  if (!named) return [...new TextEncoder().encode(name)];
  return named[1].split("\\x").slice(1).map((byte) => parseInt(byte, 16));
}

/** Shaded text: one element for each token, or for a few that make up one character. */
export class ShadedText {
  constructor(element, info) {
    this.element = element;
    this.info = info;
    this.tokens = [];
    this.bytes = []; // of a character that is not complete
    this.logprob = 0;
    this.current = -1;
    element.tabIndex = 0;
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", "Answer by tokens: the arrow keys go from one to the next");
    element.addEventListener("keydown", (event) => this.#key(event));
    for (const kind of ["pointerover", "click"]) {
      element.addEventListener(kind, (event) => {
        const index = event.target.dataset?.index;
        if (index !== undefined) this.#show(Number(index));
      });
    }
  }

  add(token) {
    this.bytes.push(...token.bytes);
    this.logprob += token.logprob;
    let text;
    try {
      text = decoder.decode(new Uint8Array(this.bytes));
    } catch {
      if (this.bytes.length < 4) return; // the rest of the character comes with the next token
      text = "\ufffd";
    }
    const span = document.createElement("span");
    span.textContent = text;
    span.dataset.index = this.tokens.length;
    span.className = `token level${levelOf(Math.exp(this.logprob))}`;
    this.tokens.push({ span, text, logprob: this.logprob, top: token.top });
    this.bytes = [];
    this.logprob = 0;
    this.element.append(span);
  }

  #key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || this.tokens.length === 0 || event.target !== this.element) return;
    event.preventDefault();
    this.#show(Math.min(Math.max(this.current + step, 0), this.tokens.length - 1));
  }

  #show(index) {
    this.tokens[this.current]?.span.classList.remove("current");
    this.current = index;
    const { span, text, logprob, top } = this.tokens[index];
    span.classList.add("current");
    const others = top.map(([name, value]) => `${quoted(name)} ${percent(value)}`).join(", ");
    this.info.textContent = `${quoted(text)} had ${percent(logprob)}${others && `; likeliest: ${others}`}`;
  }
}

function levelOf(probability) {
  const found = LEVELS.findIndex((level) => probability >= level);
  return found < 0 ? LEVELS.length : found;
}

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return `${value < 0.1 ? "under 0.1" : value.toFixed(1)} %`;
}

function quoted(text) {
  return `“${text.replaceAll("\n", "↵").replaceAll("\t", "⇥")}”`;
}
