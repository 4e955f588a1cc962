// One conversation, on the screen and in memory; asks nobody anything. Its turns are a tree: what is edited
// or answered anew becomes a branch beside what was there, and the path to one leaf is shown.

import { withImages } from "./images.js";
import { load, save } from "./storage.js";
import { conversations, newId, turnsOf, write } from "./store.js";
import { TurnView } from "./turn.js";

const LONGEST_TITLE = 60;

export class Conversation {
  /** ``asksAgain`` answers what the conversation now ends with; ``failed`` is told of what cannot be kept. */
  constructor(mode, list, asksAgain, failed) {
    this.mode = mode;
    this.list = list;
    this.asksAgain = asksAgain;
    this.failed = failed;
    this.views = [];
    this.#take(null, []);
  }

  #take(record, all) {
    this.record = record;
    this.all = all;
    this.chosen = new Map(); // by a turn, the one after it that was shown last
    this.isRemoved = false;
    this.#showTo(record?.leaf ?? null);
  }

  /** Show what this tab showed before it was loaded again. */
  async restore() {
    const id = load(`open.${this.mode}`);
    const record = id && (await conversations()).find((one) => one.id === id);
    if (record && this.all.length === 0) await this.open(record);
  }

  async open(record) {
    const turns = await turnsOf(record.id);
    this.#take(record, turns);
    save(`open.${this.mode}`, record.id);
  }

  /** Begin another one; this one stays where it is kept. */
  clear() {
    this.#take(null, []);
    save(`open.${this.mode}`, null);
  }

  /** It was removed, here or in another tab: what is added next keeps all of it again. */
  forget() {
    this.isRemoved = true;
  }

  /** It was renamed, or another tab has written to it: those turns are branches here. */
  async refresh() {
    const { record } = this;
    const turns = await turnsOf(record.id);
    const kept = (await conversations()).find((one) => one.id === record.id);
    if (record !== this.record || !kept) return;
    record.title = kept.title;
    const known = new Set(this.all.map((turn) => turn.id));
    this.all.push(...turns.filter((turn) => !known.has(turn.id)));
    this.#showBranches();
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

  /** ``more`` is what a turn of this role has beside its text. */
  add(role, content, more = {}) {
    const now = Date.now();
    this.record ??= { id: newId(), mode: this.mode, title: titleOf(content || "Image"), created: now, updated: now, leaf: null };
    save(`open.${this.mode}`, this.record.id);
    const { id } = this.record;
    const turn = { id: newId(), conversation: id, parent: this.record.leaf, created: now, role, content, ...more };
    this.all.push(turn);
    this.#showTo(turn.id);
    this.keep(turn);
    return this.last;
  }

  /** What is added next begins beside the first turn. */
  startOver() {
    if (this.record) this.#showTo(null);
  }

  /** Keep a turn of a conversation, by now perhaps no longer the one that is shown. */
  async keep(turn, record = this.record) {
    const isShown = record === this.record;
    const turns = isShown && this.isRemoved ? this.all : [turn];
    if (isShown) this.isRemoved = false;
    record.updated = Date.now();
    try {
      await write(record, turns);
    } catch (error) {
      this.failed(error);
    }
  }

  /** What a request says of the conversation. */
  toBody(system) {
    const turns = this.turns;
    if (this.mode === "completion") return { prompt: turns[0]?.content ?? "" };
    const messages = turns.map(messageOf).filter((message) => message !== null);
    return { messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  }

  #view(turn) {
    const isAnswer = turn.role === "assistant" || turn.role === "completion";
    const actions = {};
    if (isAnswer) actions.Retry = () => this.#askFrom(turn.parent);
    if (turn.role === "completion") actions.Continue = () => this.#goOn();
    const view = new TurnView(turn, actions, (text) => this.#edited(turn, isAnswer, text));
    view.onResults = (results) => {
      turn.calls.forEach((call, index) => this.add("tool", results[index], { call: call.id, tool: call.name }));
      this.asksAgain();
    };
    return view;
  }

  /** Show the turns from the first to one; null: none. */
  #showTo(id) {
    const byId = new Map(this.all.map((turn) => [turn.id, turn]));
    const path = [];
    for (let turn = byId.get(id); turn; turn = byId.get(turn.parent)) path.unshift(turn);
    for (const turn of path) this.chosen.set(turn.parent, turn.id);
    let same = 0;
    while (same < path.length && this.views[same]?.turn === path[same]) same += 1;
    for (const view of this.views.splice(same)) view.element.remove();
    for (const turn of path.slice(same)) {
      const view = this.#view(turn);
      this.views.push(view);
      this.list.append(view.element);
    }
    if (this.record) this.record.leaf = id;
    this.#showBranches();
  }

  #after(parent) {
    return this.all.filter((turn) => turn.parent === parent);
  }

  #showBranches() {
    const groups = Map.groupBy(this.all, (turn) => turn.parent);
    for (const view of this.views) {
      const beside = groups.get(view.turn.parent) ?? [view.turn];
      view.takesResults = view === this.last;
      view.showBranches(beside.indexOf(view.turn), beside.length, (index) => this.#choose(beside[index]));
    }
  }

  /** Show a branch, as far as it went when it was shown last. */
  #choose(turn) {
    let end = turn;
    for (let after = this.#after(end.id); after.length; after = this.#after(end.id)) {
      end = after.find((one) => one.id === this.chosen.get(end.id)) ?? after.at(-1);
    }
    this.#showTo(end.id);
    this.keep(turn);
    this.views.find((view) => view.turn === turn)?.focusBranches();
  }

  #askFrom(parent) {
    this.#showTo(parent);
    this.asksAgain();
  }

  /** The text so far, answer included, becomes what is to be continued. */
  #goOn() {
    const text = this.turns.map((turn) => turn.content).join("");
    this.startOver();
    this.add("prompt", text);
    this.asksAgain();
  }

  #edited(turn, isAnswer, text) {
    if (isAnswer && text === turn.content) return;
    const { call, tool } = turn;
    const path = this.turns;
    const others = path.slice(path.indexOf(turn) + 1); // results of the same answer's other calls
    this.#showTo(turn.parent);
    const more = turn.images ? { images: turn.images } : {};
    const view = this.add(turn.role, text, tool === undefined ? more : { call, tool });
    for (const other of tool === undefined ? [] : others) {
      if (other.role !== "tool") break;
      this.add("tool", other.content, { call: other.call, tool: other.tool });
    }
    if (isAnswer) view.buttons.querySelector("button").focus();
    else this.asksAgain();
  }
}

/** A turn as a request has it, null for an answer that failed; calls without results are no part of it. */
function messageOf(turn, index, path) {
  const { role, content } = turn;
  if (role === "tool") return { role, tool_call_id: turn.call, content };
  if (role !== "assistant" || !turn.calls?.length || path[index + 1]?.role !== "tool") {
    return role !== "assistant" || content ? { role, content: withImages(content, turn.images) } : null;
  }
  const calls = turn.calls.map((call) => ({
    id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
  }));
  return { role, content, tool_calls: calls };
}

function titleOf(text) {
  const line = text.trim().replaceAll(/\s+/g, " ");
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line;
}
