// Calls of tools in an answer: put together from their pieces, as elements, and answered by hand.

import { serverOf } from "./mcp.js";

/** Add the pieces of one event to the calls so far. */
export function addCalls(calls, pieces) {
  for (const { index = calls.length, id, function: said } of pieces) {
    calls[index] ??= { id: id ?? `call_${index}`, name: "", arguments: "" };
    calls[index].name += said?.name ?? "";
    calls[index].arguments += said?.arguments ?? "";
  }
}

export function callElements(calls) {
  return calls.filter(Boolean).map((call) => {
    const element = document.createElement("div");
    element.className = "call";
    const name = document.createElement("p");
    name.textContent = "Calls ";
    name.append(Object.assign(document.createElement("code"), { textContent: call.name }));
    const given = document.createElement("pre");
    given.textContent = indented(call.arguments);
    given.tabIndex = 0;
    element.append(name, given);
    return element;
  });
}

/** A form that takes the result of each call; ``send`` gets them in the order of the calls. */
export function resultForm(calls, send) {
  const form = document.createElement("form");
  form.className = "results";
  const areas = calls.map((call) => {
    const label = document.createElement("label");
    label.textContent = `Result of ${call.name}`;
    const area = document.createElement("textarea");
    area.rows = 2;
    area.spellcheck = false;
    label.append(area);
    form.append(label);
    const server = serverOf(call.name);
    if (server) form.append(runButton(call, server, area));
    return area;
  });
  const button = document.createElement("button");
  button.className = "small main";
  button.textContent = areas.length > 1 ? "Send results" : "Send result";
  form.append(button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(areas.map((area) => area.value));
  });
  return form;
}

/** Runs a call on its server when a person presses it, and shows the result before it is sent. */
function runButton(call, server, area) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = `Run ${call.name} on ${server.url}`;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      area.value = await server.call(call.name, JSON.parse(call.arguments || "{}"));
    } catch (error) {
      area.value = `Error: ${error.message}`;
    }
    button.disabled = false;
    area.focus();
  });
  return button;
}

/** JSON with a line for each value; as it is while it is not whole. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
