// The turns of one mode, on the screen and in memory; asks nobody anything.

import { load, save } from "./storage.js";
import { TurnView } from "./turn.js";

export class Conversation {
  /** ``asksAgain`` answers what the conversation now ends with. */
  constructor(mode, list, asksAgain) {
    this.mode = mode;
    this.list = list;
    this.asksAgain = asksAgain;
    this.views = (load(mode) ?? []).map((turn) => this.#view(turn));
  }

  get turns() {
    return this.views.map((view) => view.turn);
  }

  get last() {
    return this.views.at(-1);
  }

  /** Show this conversation, and no other, in the list. */
  show() {
    this.list.replaceChildren(...this.views.map((view) => view.element));
  }

  add(role, content) {
    const view = this.#view({ role, content });
    this.views.push(view);
    this.list.append(view.element);
    this.keep();
    return view;
  }

  clear() {
    this.#cut(0);
  }

  keep() {
    save(this.mode, this.views.length ? this.turns : null);
  }

  /** What a request says of the conversation. */
  toBody(system) {
    const turns = this.turns;
    if (this.mode === "completion") return { prompt: turns[0]?.content ?? "" };
    const said = turns.filter(({ role, content }) => role !== "assistant" || content); // not what failed
    const messages = said.map(({ role, content }) => ({ role, content }));
    return { messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  }

  #view(turn) {
    const isAnswer = turn.role === "assistant" || turn.role === "completion";
    const actions = {};
    if (isAnswer) actions.Retry = () => this.#retry(view);
    if (turn.role === "completion") actions.Continue = () => this.#goOn();
    const view = new TurnView(turn, actions, (text) => this.#edited(view, isAnswer, text));
    return view;
  }

  #cut(length) {
    for (const view of this.views.splice(length)) view.element.remove();
    this.keep();
  }

  #retry(view) {
    this.#cut(this.views.indexOf(view));
    this.asksAgain();
  }

  /** The text so far, answer included, becomes what is to be continued. */
  #goOn() {
    const text = this.turns.map((turn) => turn.content).join("");
    this.clear();
    this.add("prompt", text);
    this.asksAgain();
  }

  #edited(view, isAnswer, text) {
    Object.assign(view.turn, { content: text, numbers: null, error: null });
    const index = this.views.indexOf(view);
    const fresh = this.#view(view.turn); // without shading that no longer fits
    view.element.replaceWith(fresh.element);
    this.views[index] = fresh;
    this.keep();
    if (isAnswer) {
      fresh.buttons.firstChild.focus();
      return;
    }
    this.#cut(index + 1);
    this.asksAgain();
  }
}
