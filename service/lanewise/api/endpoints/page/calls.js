// Calls of tools in an answer: put together from their pieces, and as elements.

/** Add the pieces of one event to the calls so far. */
export function addCalls(calls, pieces) {
  for (const { index = calls.length, function: said } of pieces) {
    calls[index] ??= { name: "", arguments: "" };
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

/** JSON with a line for each value; as it is while it is not whole. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
