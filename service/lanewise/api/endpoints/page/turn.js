// One turn of a conversation on the screen. What anybody wrote is set as text, never as markup.

import { callElements, resultForm } from "./calls.js";
import { copy } from "./copy.js";
import { MarkdownView } from "./markdown.js";
import { ShadedText } from "./tokens.js";

const NAMES = { user: "You", assistant: "Model", prompt: "Text", completion: "Continuation", tool: "Result" };

/** The name of a turn's writer; of a result, what it is of. */
export function nameOf(turn) {
  return turn.tool === undefined ? NAMES[turn.role] : `${NAMES.tool} of ${turn.tool}`;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export class TurnView {
  #isBusy = false;
  #takesResults = false;

  /** ``actions`` are functions by the names of their buttons; ``onEdit`` takes a changed text. */
  constructor(turn, actions, onEdit) {
    this.turn = turn;
    this.name = nameOf(turn);
    this.onEdit = onEdit;
    this.element = make("li", `turn ${turn.role}`);
    this.reasoning = make("details", "reasoning");
    this.reasoning.append(make("summary", "", "Reasoning"), make("p"));
    this.isFoldedByHand = false;
    this.reasoning.firstChild.addEventListener("click", () => (this.isFoldedByHand = true));
    this.calls = make("div", "calls");
    const names = (turn.images ?? []).map(({ name }) => name);
    this.images = make("p", "images", names.length ? `With ${names.join(", ")}` : "");
    this.text = make("div", "text");
    this.markdown = new MarkdownView(this.text);
    this.isRaw = turn.role !== "assistant"; // what is read as Markdown is only what answers in a chat
    this.info = make("p", "info");
    this.info.setAttribute("role", "status");
    this.numbers = make("dl", "numbers");
    this.error = make("p", "error");
    this.error.setAttribute("role", "alert");
    this.buttons = this.#buttons(actions);
    const parts = [this.reasoning, this.images, this.text, this.calls, this.info, this.numbers, this.error, this.buttons];
    this.element.append(make("h2", "", this.name), ...parts);
    this.shaded = null;
    this.onResults = null; // takes the results of its calls
    this.show();
  }

  #buttons(actions) {
    const group = make("div", "actions");
    for (const [name, action] of Object.entries({ Edit: () => this.edit(), ...actions, Copy: () => copy(this.turn.content) })) {
      const button = make("button", "small", name);
      button.type = "button";
      button.setAttribute("aria-label", `${name}: ${this.name}`);
      button.addEventListener("click", action);
      group.append(button);
    }
    if (!this.isRaw) group.append(this.#rawButton());
    this.branches = make("span", "branches");
    group.append(this.branches);
    return group;
  }

  /** Whether the results of its calls come next, which a person can give. */
  set takesResults(takes) {
    if (takes === this.#takesResults) return;
    this.#takesResults = takes;
    this.showCalls();
  }

  /** Say which of several branches this turn is; ``choose`` goes to another by its index. */
  showBranches(index, count, choose) {
    this.branches.replaceChildren();
    if (count < 2) return;
    const arrow = (sign, name, to) => {
      const button = make("button", "small", sign);
      button.type = "button";
      button.disabled = to < 0 || to >= count;
      button.setAttribute("aria-label", `${name} version: ${this.name}`);
      button.addEventListener("click", () => choose(to));
      return button;
    };
    const place = make("span", "", `${index + 1} / ${count}`);
    this.branches.append(arrow("‹", "Previous", index - 1), place, arrow("›", "Next", index + 1));
  }

  focusBranches() {
    this.branches.querySelector("button:enabled")?.focus();
  }

  /** Shows the text as the model wrote it, and again as Markdown. */
  #rawButton() {
    const button = make("button", "small", "Raw");
    button.type = "button";
    button.setAttribute("aria-label", `Raw: ${this.name}`);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      this.isRaw = !this.isRaw;
      button.setAttribute("aria-pressed", String(this.isRaw));
      this.showText();
    });
    return button;
  }

  /** Draw the whole turn anew. */
  show() {
    this.showText();
    this.showReasoning();
    this.showCalls();
    this.showRest();
  }

  /** Draw the text as far as it has come, unless its tokens are shown. */
  showText() {
    if (this.shaded) return;
    this.text.classList.toggle("rendered", !this.isRaw);
    if (!this.isRaw) {
      this.markdown.show(this.turn.content);
      return;
    }
    this.markdown.clear();
    this.text.textContent = this.turn.content;
  }

  showReasoning() {
    this.reasoning.hidden = !this.turn.reasoning;
    this.reasoning.lastChild.textContent = this.turn.reasoning ?? "";
    // Open as long as there is nothing else to read.
    if (!this.isFoldedByHand) this.reasoning.open = this.turn.content === "" && !this.turn.calls?.length;
  }

  showCalls() {
    const calls = this.turn.calls ?? [];
    this.calls.replaceChildren(...callElements(calls));
    if (calls.length && this.#takesResults && !this.#isBusy) this.calls.append(resultForm(calls, this.onResults));
  }

  /** How much of the prompt has been read while there is no answer; null: there is one. */
  showProgress(progress) {
    const isPart = progress !== null && progress.processed < progress.total;
    this.info.textContent = isPart ? `Reading the prompt: ${progress.processed} of ${progress.total} tokens` : "";
  }

  showRest() {
    const rows = this.turn.numbers ?? [];
    this.numbers.hidden = rows.length === 0;
    this.numbers.replaceChildren(...rows.map(([name, value]) => {
      const row = make("div");
      row.append(make("dt", "", name), make("dd", "", value));
      row.dataset.name = name;
      return row;
    }));
    this.error.hidden = !this.turn.error;
    this.error.textContent = this.turn.error ?? "";
  }

  /** While an answer arrives: no buttons, and those who cannot see are not read every piece. */
  set isBusy(busy) {
    this.#isBusy = busy;
    this.element.setAttribute("aria-busy", String(busy));
    this.element.classList.toggle("busy", busy);
    this.buttons.hidden = busy;
  }

  /** Add tokens that have arrived: where there are any, they are shown in place of the text. */
  append(tokens) {
    if (!this.shaded) this.#startShading();
    for (const token of tokens) this.shaded.add(token);
  }

  #startShading() {
    this.markdown.clear();
    this.text.classList.remove("rendered");
    this.shaded = new ShadedText(this.text, this.info);
    this.buttons.querySelector("[aria-pressed]")?.remove();
  }

  /** The answer is complete. */
  end() {
    this.isBusy = false;
    if (!this.shaded) this.showProgress(null);
    this.show();
  }

  edit() {
    const area = make("textarea", "editor");
    area.value = this.turn.content;
    area.setAttribute("aria-label", `Edit: ${this.name}`);
    area.rows = Math.min(Math.max(area.value.split("\n").length, 2), 20);
    const goesOn = ["user", "prompt", "tool"].includes(this.turn.role);
    const done = make("button", "small main", goesOn ? "Save and send" : "Save");
    const cancel = make("button", "small", "Cancel");
    const row = make("div", "actions");
    for (const button of [done, cancel]) button.type = "button";
    row.append(done, cancel);
    const hidden = [this.text, this.buttons, this.numbers];
    const close = () => {
      area.remove();
      row.remove();
      for (const part of hidden) part.hidden = false;
      this.showRest();
      this.buttons.firstChild.focus();
    };
    const save = () => {
      close();
      this.onEdit(area.value);
    };
    done.addEventListener("click", save);
    cancel.addEventListener("click", close);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    for (const part of hidden) part.hidden = true;
    this.element.append(area, row);
    area.focus();
  }
}
