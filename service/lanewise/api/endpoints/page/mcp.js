// Tools of MCP servers over streamable HTTP: which there are, and their being called when a person allows it.

import { eventsOf } from "./api.js";
import { load, save } from "./storage.js";

const VERSION = "2025-06-18";
const MAX_PAGES = 20; // of a list of tools
const ADDRESSES = JSON.parse(document.querySelector("meta[name=mcp-servers]").content);

class McpServer {
  constructor(url) {
    this.url = url;
    this.tools = [];
    this.session = null;
    this.version = VERSION;
    this.count = 0;
  }

  async connect() {
    this.session = null;
    const clientInfo = { name: "lanewise", version: "1" };
    const { protocolVersion } = await this.#ask("initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo });
    this.version = protocolVersion;
    await this.#send({ method: "notifications/initialized" });
    this.tools = [];
    let cursor;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const list = await this.#ask("tools/list", cursor === undefined ? {} : { cursor });
      this.tools.push(...list.tools);
      cursor = list.nextCursor;
      if (cursor === undefined) return;
    }
  }

  /** The text of a tool's result; an Error when the server has none. */
  async call(name, given) {
    const { content = [], isError } = await this.#ask("tools/call", { name, arguments: given });
    const texts = content.map((part) => (part.type === "text" ? part.text : `[${part.type}]`));
    return `${isError ? "Error: " : ""}${texts.join("\n")}`;
  }

  async #ask(method, params) {
    this.count += 1;
    const id = this.count;
    const answer = await this.#send({ id, method, params });
    if (method === "initialize") this.session = answer.headers.get("mcp-session-id");
    const isStream = answer.headers.get("content-type")?.startsWith("text/event-stream");
    for await (const text of isStream ? eventsOf(answer.body) : [await answer.text()]) {
      const message = JSON.parse(text);
      if (message.id !== id) continue; // what it tells beside the answer
      if (message.error) throw new Error(message.error.message);
      return message.result;
    }
    throw new Error("the server ended its answer without a result");
  }

  async #send(message) {
    const headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
    if (message.method !== "initialize") headers["MCP-Protocol-Version"] = this.version;
    if (this.session !== null) headers["Mcp-Session-Id"] = this.session;
    const body = JSON.stringify({ jsonrpc: "2.0", ...message });
    const answer = await fetch(this.url, { method: "POST", headers, body });
    if (!answer.ok) throw new Error(`it answers with status ${answer.status}`);
    return answer;
  }
}

const servers = ADDRESSES.map((url) => new McpServer(url));
let used = []; // the servers whose tools are offered

/** The tools that are offered beside some others, whose names they do not take. */
export function offeredTools(others) {
  const taken = new Set(others.map((tool) => tool.function.name));
  const found = used.flatMap((server) => server.tools).filter(({ name }) => !taken.has(name) && taken.add(name));
  return found.map(({ name, description, inputSchema }) => ({
    type: "function", function: { name, description, parameters: inputSchema },
  }));
}

/** The server that has a tool of this name, and is used. */
export function serverOf(name) {
  return used.find((server) => server.tools.some((tool) => tool.name === name)) ?? null;
}

/** A box for each server: whoever ticks it has its tools offered. */
export function setUpMcp(place) {
  const kept = new Set(load("mcp") ?? []);
  for (const server of servers) {
    const label = document.createElement("label");
    label.className = "check";
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: kept.has(server.url) });
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    label.append(box, ` Tools of ${server.url} `, said);
    place.append(label);
    const changed = async () => {
      used = used.filter((one) => one !== server);
      said.textContent = "";
      if (box.checked) {
        said.textContent = "is asked";
        try {
          await server.connect();
          if (box.checked) used = [...used.filter((one) => one !== server), server];
          said.textContent = server.tools.map((tool) => tool.name).join(", ") || "has none";
        } catch (error) {
          box.checked = false;
          said.textContent = `cannot be used: ${error.message}`;
        }
      }
      save("mcp", used.map((one) => one.url));
    };
    box.addEventListener("change", changed);
    if (box.checked) changed();
  }
}
