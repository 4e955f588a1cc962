// Conversations as a file: what is written, and what of a file that somebody has is taken.

import { newId } from "./store.js";
import { nameOf } from "./turn.js";

const FORMAT = "lanewise.conversations.1";
const ROLES = { chat: ["user", "assistant", "tool"], completion: ["prompt", "completion"] };

export function exported(conversations, turns) {
  const byConversation = Map.groupBy(turns, (turn) => turn.conversation);
  const list = conversations.map((record) => ({ ...record, turns: byConversation.get(record.id) ?? [] }));
  return `${JSON.stringify({ format: FORMAT, conversations: list }, null, 1)}\n`;
}

/** A conversation as it is shown, as Markdown. */
export function asMarkdown(record, turns) {
  const byId = new Map(turns.map((turn) => [turn.id, turn]));
  const path = [];
  for (let turn = byId.get(record.leaf); turn; turn = byId.get(turn.parent)) path.unshift(turn);
  const parts = path.map((turn) => {
    const calls = (turn.calls ?? []).map((call) => `Calls \`${call.name}\`:\n\n${fenced(call.arguments)}`);
    return [`## ${nameOf(turn)}`, turn.content, ...calls].filter(Boolean).join("\n\n");
  });
  return `${[`# ${record.title}`, ...parts].join("\n\n")}\n`;
}

/** A block of code that no line of a text ends. */
export function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** The conversations of a file, each with its turns; an Error says what is wrong with it. */
export function imported(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not JSON: ${error.message}`);
  }
  if (content?.format !== FORMAT || !Array.isArray(content.conversations)) {
    throw new Error(`The file is no export of this page: its "format" is not "${FORMAT}"`);
  }
  return content.conversations.map((one, index) => taken(one, `conversations[${index}]`));
}

function taken(one, where) {
  const roles = Object.hasOwn(ROLES, one?.mode ?? "") ? ROLES[one.mode] : null;
  if (!roles) throw new Error(`${where}.mode is neither "chat" nor "completion"`);
  const texts = { id: one.id, title: one.title };
  for (const [name, value] of Object.entries(texts)) demand(typeof value === "string" && value, `${where}.${name}`, "a text");
  demand(Array.isArray(one.turns), `${where}.turns`, "a list");
  const ids = new Map(); // each gets a new one, so that it takes the place of no turn that is here
  const turns = one.turns.map((turn, index) => {
    const at = `${where}.turns[${index}]`;
    demand(roles.includes(turn?.role), `${at}.role`, roles.join(" or "));
    demand(typeof turn.content === "string", `${at}.content`, "a text");
    demand(turn.parent === null || ids.has(turn.parent), `${at}.parent`, "null or the id of a turn before it");
    const id = newId();
    ids.set(turn.id, id);
    const kept = { id, conversation: one.id, parent: ids.get(turn.parent) ?? null, created: time(turn.created) };
    return { ...kept, role: turn.role, content: turn.content, ...rest(turn, at) };
  });
  const times = { created: time(one.created), updated: time(one.updated) };
  return { record: { ...texts, mode: one.mode, ...times, leaf: ids.get(one.leaf) ?? turns.at(-1)?.id ?? null }, turns };
}

/** What not every turn has. */
function rest(turn, at) {
  const found = {};
  const names = turn.role === "tool" ? ["call", "tool"] : ["reasoning", "error"];
  for (const name of turn.role === "tool" ? names : []) demand(typeof turn[name] === "string", `${at}.${name}`, "a text");
  for (const name of names) {
    if (turn[name] === undefined || turn[name] === null) continue;
    demand(typeof turn[name] === "string", `${at}.${name}`, "a text");
    found[name] = turn[name];
  }
  if (turn.images) {
    const isImage = (image) => typeof image?.name === "string" && /^data:image\//.test(image.url);
    demand(turn.role === "user" && Array.isArray(turn.images) && turn.images.every(isImage), `${at}.images`, "a list of names with data: URLs of images");
    found.images = turn.images.map(({ name, url }) => ({ name, url }));
  }
  const isPair = (pair) => Array.isArray(pair) && pair.length === 2 && pair.every((text) => typeof text === "string");
  if (turn.numbers) {
    demand(Array.isArray(turn.numbers) && turn.numbers.every(isPair), `${at}.numbers`, "a list of pairs of texts");
    found.numbers = turn.numbers;
  }
  if (turn.calls) {
    const isCall = (call) => typeof call?.name === "string" && typeof call.arguments === "string";
    demand(Array.isArray(turn.calls) && turn.calls.every(isCall), `${at}.calls`, "a list of names with arguments");
    found.calls = turn.calls.map((call, index) => ({
      id: typeof call.id === "string" ? call.id : `call_${index}`, name: call.name, arguments: call.arguments,
    }));
  }
  return found;
}

function time(value) {
  return Number.isFinite(value) ? value : Date.now();
}

function demand(holds, where, accepted) {
  if (!holds) throw new Error(`${where} is not ${accepted}`);
}
