// The list of conversations: opening, finding, renaming, removing with a way back, and as a file.

import { asMarkdown, exported, imported } from "./exchange.js";
import { conversations, remove, turnsOf, write } from "./store.js";

const byId = (id) => document.getElementById(id);

function button(text, label, onClick) {
  const element = document.createElement("button");
  element.type = "button";
  element.textContent = text;
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", onClick);
  return element;
}

function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export class History {
  /** ``open`` shows a conversation, ``removed`` and ``renamed`` are told of it, ``openId`` gives what is shown. */
  constructor({ open, removed, renamed, openId }) {
    Object.assign(this, { open, removed, renamed, openId });
    this.undo = null;
    this.round = 0;
    byId("history-search").addEventListener("input", () => this.show());
    byId("history-undo").addEventListener("click", () => this.#undo());
    byId("history-export").addEventListener("click", () => this.#export());
    byId("history-markdown").addEventListener("click", () => this.#exportShown());
    byId("history-import").addEventListener("click", () => byId("history-file").click());
    byId("history-file").addEventListener("change", () => this.#import());
  }

  /** Draw the list anew. */
  async show() {
    const round = ++this.round;
    const found = await this.#found();
    if (round !== this.round || byId("history-list").querySelector("input")) return; // outdated, or a name is written
    byId("history-list").replaceChildren(...found.map((one) => this.#entry(one)));
  }

  async #found() {
    const sought = byId("history-search").value.trim().toLowerCase();
    const all = await conversations();
    if (!sought) return all;
    const holds = (text) => text.toLowerCase().includes(sought);
    const turns = await turnsOf();
    const ids = new Set(turns.filter((turn) => holds(turn.content)).map((turn) => turn.conversation));
    return all.filter((one) => ids.has(one.id) || holds(one.title));
  }

  #entry(record) {
    const item = document.createElement("li");
    item.className = "entry";
    const open = button(record.title, null, () => this.open(record));
    open.className = "open";
    open.title = record.title;
    if (record.id === this.openId()) open.setAttribute("aria-current", "true");
    const rename = button("✎", `Rename: ${record.title}`, () => this.#rename(record, item));
    const away = button("✕", `Delete: ${record.title}`, () => this.#remove(record));
    item.append(open, rename, away);
    return item;
  }

  #rename(record, item) {
    const input = document.createElement("input");
    input.value = record.title;
    input.setAttribute("aria-label", `New name: ${record.title}`);
    const end = async (takes) => {
      if (!input.isConnected) return;
      const title = input.value.trim();
      input.remove();
      if (takes && title) await this.#change(() => this.#retitle(record.id, title));
      await this.show();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end(false);
    });
    input.addEventListener("blur", () => end(true));
    item.replaceChildren(input);
    input.select();
  }

  async #retitle(id, title) {
    const record = (await conversations()).find((one) => one.id === id);
    if (record) await write({ ...record, title }, []);
    this.renamed(id);
  }

  async #remove(record) {
    const isShown = record.id === this.openId();
    await this.#change(async () => {
      const turns = await remove(record);
      this.undo = { record, turns, isShown };
      this.removed(record.id);
      this.#say(`Deleted “${record.title}”.`, true);
    });
    await this.show();
    byId("history-undo").focus();
  }

  async #undo() {
    const { record, turns, isShown } = this.undo;
    await this.#change(async () => {
      await write(record, turns);
      this.#say(`“${record.title}” is back.`);
    });
    if (isShown) await this.open(record);
    await this.show();
    byId("history-title").focus();
  }

  async #export() {
    await this.#change(async () => {
      download("lanewise-conversations.json", "application/json", exported(await conversations(), await turnsOf()));
    });
  }

  async #exportShown() {
    await this.#change(async () => {
      const record = (await conversations()).find((one) => one.id === this.openId());
      if (!record) throw new Error("No conversation is open.");
      const name = record.title.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replaceAll(/^-|-$/g, "") || "conversation";
      download(`${name}.md`, "text/markdown", asMarkdown(record, await turnsOf(record.id)));
    });
  }

  async #import() {
    const field = byId("history-file");
    const [file] = field.files;
    if (!file) return;
    await this.#change(async () => {
      const known = new Set((await conversations()).map((one) => one.id));
      const all = imported(await file.text());
      const fresh = all.filter(({ record }) => !known.has(record.id));
      for (const { record, turns } of fresh) await write(record, turns);
      this.#say(`${fresh.length} imported, ${all.length - fresh.length} were here already.`);
    });
    field.value = "";
    await this.show();
  }

  async #change(toDo) {
    this.#say("");
    try {
      await toDo();
    } catch (error) {
      this.#say(error?.message ?? "This browser keeps nothing.");
    }
  }

  #say(text, canUndo = false) {
    byId("history-said").textContent = text;
    byId("history-undo").hidden = !canUndo;
    if (!canUndo) this.undo = null;
  }
}
