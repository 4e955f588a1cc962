// The form of settings: what of it a request contains, and its being remembered.

import { offeredTools } from "./mcp.js";
import { checkedSchema, checkedTools } from "./schema.js";
import { load, save } from "./storage.js";

const NUMBERS = [
  "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed",
  "repetition_penalty", "presence_penalty", "frequency_penalty",
];
// What the server says of what it takes where a field is empty, by the names of its fields here.
const DEFAULTS = {
  temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", repetition_penalty: "repeat_penalty",
  presence_penalty: "presence_penalty", frequency_penalty: "frequency_penalty",
};
const PATTERNS = {
  json_schema: "JSON schema",
  regex: "Regular expression",
  choice: "Answers, one a line",
};
const WITH_LINE = ["pattern", "tools"]; // fields with a line below that says what is wrong
const ALTERNATIVES = 5; // to each token, where probabilities are shown

/** A setting that no request can be made with; ``field`` is where. */
export class SettingsError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

export class Settings {
  constructor(form) {
    this.form = form;
    this.fields = form.elements;
    for (const [name, value] of Object.entries(load("settings") ?? {})) this.#set(name, value);
    form.addEventListener("input", () => this.#changed());
    form.addEventListener("submit", (event) => event.preventDefault());
    this.#changed();
  }

  get showsProbabilities() {
    return this.fields.probabilities.checked;
  }

  /** Show in each empty field what the server takes then. */
  showDefaults(params) {
    for (const [name, theirs] of Object.entries(DEFAULTS)) {
      const value = params?.[theirs];
      if (typeof value === "number") this.fields[name].placeholder = String(Number(value.toPrecision(6)));
    }
  }

  /** What a request says beside the model and the text; throws SettingsError. */
  toBody(isChat) {
    const body = {};
    for (const name of NUMBERS) {
      const field = this.fields[name];
      if (!field.checkValidity()) throw new SettingsError(field, field.validationMessage);
      if (field.value !== "") body[name] = Number(field.value);
    }
    const stop = linesOf(this.fields.stop.value);
    if (stop.length) body.stop = stop;
    const tools = isChat && this.fields.tools.value.trim() ? this.#checked("tools", checkedTools) : [];
    if (isChat) tools.push(...offeredTools(tools));
    if (tools.length) body.tools = tools;
    if (isChat && this.fields.reasoning_effort.value) {
      body.reasoning_effort = this.fields.reasoning_effort.value;
    }
    Object.assign(body, this.#structure());
    if (this.showsProbabilities) {
      Object.assign(body, isChat ? { logprobs: true, top_logprobs: ALTERNATIVES } : { logprobs: ALTERNATIVES });
    }
    return body;
  }

  #structure() {
    const kind = this.fields.structure.value;
    const text = this.fields.pattern.value;
    if (kind === "json_object") return { response_format: { type: "json_object" } };
    if (kind === "regex") return { structured_outputs: { regex: text } };
    if (kind === "choice") return { structured_outputs: { choice: linesOf(text) } };
    if (kind !== "json_schema") return {};
    const schema = this.#checked("pattern", checkedSchema);
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
  }

  /** What ``check`` makes of a field's text; what it throws is shown at the field. */
  #checked(name, check) {
    const field = this.fields[name];
    try {
      return check(field.value);
    } catch (error) {
      throw new SettingsError(field, error.message);
    }
  }

  #changed() {
    const kind = PATTERNS[this.fields.structure.value];
    document.getElementById("pattern-label").hidden = kind === undefined;
    document.getElementById("pattern-name").textContent = kind ?? "";
    this.showError(null);
    const named = [...this.fields].filter((field) => field.name);
    save("settings", Object.fromEntries(named.map((field) => [field.name, valueOf(field)])));
  }

  #set(name, value) {
    const field = this.fields[name];
    if (field === undefined) return; // of another version of the page
    if (field.type === "checkbox") field.checked = value;
    else field.value = value;
  }

  /** Say at the field what is wrong; null takes it back. */
  showError(error) {
    for (const name of WITH_LINE) {
      const field = this.fields[name];
      const text = error?.field === field ? error.message : "";
      const line = document.getElementById(`${name}-error`);
      line.textContent = text;
      line.hidden = !text;
      field.setAttribute("aria-invalid", String(Boolean(text)));
    }
    if (error === null) return;
    error.field.focus();
    if (!WITH_LINE.includes(error.field.name)) error.field.reportValidity();
  }
}

function valueOf(field) {
  return field.type === "checkbox" ? field.checked : field.value;
}

function linesOf(text) {
  return text.split("\n").filter((line) => line !== "");
}
