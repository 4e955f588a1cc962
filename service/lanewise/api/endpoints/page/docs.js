// The reference of the API, written from /openapi.json of this server.

import { urlOf } from "./api.js";

const byId = (id) => document.getElementById(id);
const METHODS = ["get", "post", "put", "patch", "delete"];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function nameOf(reference) {
  return reference.split("/").at(-1);
}

function link(name) {
  return make("a", { href: `#schema-${name}` }, name);
}

/** A type in a few words, with links to the schemas it is made of. */
function typeOf(schema) {
  if (schema === true || schema === undefined) return ["anything"];
  if (schema.$ref) return [link(nameOf(schema.$ref))];
  const branches = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (branches) return branches.flatMap((one, index) => [...(index ? [" or "] : []), ...typeOf(one)]);
  if (schema.const !== undefined) return [make("code", {}, JSON.stringify(schema.const))];
  if (schema.enum) return schema.enum.flatMap((one, index) => [index ? " " : "", make("code", {}, JSON.stringify(one))]);
  if (schema.type === "array") return ["list of ", ...typeOf(schema.items)];
  return [[schema.type ?? "anything"].flat().join(" or "), limitsOf(schema)];
}

function limitsOf(schema) {
  const limits = [
    ["minimum", "≥ "], ["exclusiveMinimum", "> "], ["maximum", "≤ "], ["exclusiveMaximum", "< "],
    ["minLength", "length ≥ "], ["maxLength", "length ≤ "], ["pattern", "like "],
  ];
  const said = limits.filter(([name]) => schema[name] !== undefined).map(([name, text]) => text + schema[name]);
  return said.length ? ` (${said.join(", ")})` : "";
}

function defaultOf(schema) {
  return schema.default === undefined ? "" : make("code", {}, JSON.stringify(schema.default));
}

function table(caption, head, rows) {
  const header = make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, ...[cell].flat()))));
  const inner = make("table", {}, make("caption", { class: "unseen" }, caption), make("thead", {}, header));
  inner.append(make("tbody", {}, ...body));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption }, inner);
}

function fieldsOf(name, schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([field, described]) => [
    [make("code", {}, field), required.has(field) ? " required" : ""],
    typeOf(described),
    defaultOf(described),
    described.description ?? "",
  ]);
  return table(`Fields of ${name}`, ["Field", "Type", "Default", "About"], rows);
}

function operation(id, path, method, described) {
  const name = `${method.toUpperCase()} ${path}`; // two methods of one path have tables of their own
  const title = make("h3", {}, make("span", { class: "method" }, method.toUpperCase()), ` ${path}`);
  const parts = [title, make("p", {}, described.summary ?? "")];
  if (described.security?.length) parts.push(make("p", { class: "hint" }, `Key: ${keysOf(described.security)}`));
  if (described.description) parts.push(make("p", { class: "hint" }, described.description));
  if (described.parameters?.length) {
    const rows = described.parameters.map((one) => [make("code", {}, one.name), one.in, typeOf(one.schema)]);
    parts.push(make("h4", {}, "Parameters"), table(`Parameters of ${name}`, ["Name", "Where", "Type"], rows));
  }
  for (const [media, content] of Object.entries(described.requestBody?.content ?? {})) {
    parts.push(make("h4", {}, "Body"), make("p", {}, make("code", {}, media), ": ", ...typeOf(content.schema)));
  }
  const answers = Object.entries(described.responses ?? {}).map(([status, answer]) => [status, answer.description, mediaOf(answer)]);
  parts.push(make("h4", {}, "Answers"), table(`Answers of ${name}`, ["Status", "When", "What"], answers));
  return make("article", { id }, ...parts);
}

/** Names of the ways to send a key, any of which will do. */
function keysOf(security) {
  return security.map((one) => Object.keys(one).join(" and ") || "none").join(" or ");
}

function mediaOf(answer) {
  return Object.entries(answer.content ?? {}).flatMap(([media, content]) => {
    const reference = content.schema?.$ref;
    return [make("code", {}, media), " ", ...(reference ? [link(nameOf(reference))] : [])];
  });
}

function show(description) {
  const contents = [];
  byId("operations").append(make("h2", {}, "Endpoints"));
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const method of METHODS.filter((one) => methods[one])) {
      const id = `${method}-${path.replaceAll(/[^\w]+/g, "-")}`;
      byId("operations").append(operation(id, path, method, methods[method]));
      contents.push(make("li", {}, make("a", { href: `#${id}` }, `${method.toUpperCase()} ${path}`)));
    }
  }
  byId("schemas").append(make("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(description.components?.schemas ?? {})) {
    const about = schema.description ? [make("p", {}, schema.description)] : [];
    const what = schema.properties ? fieldsOf(name, schema) : make("p", {}, ...typeOf(schema));
    byId("schemas").append(make("article", { id: `schema-${name}` }, make("h3", {}, name), ...about, what));
  }
  byId("contents").append(make("ul", {}, ...contents));
  byId("state").textContent = `${description.info.title} ${description.info.version}`;
}

try {
  const answer = await fetch(urlOf("openapi.json"));
  show(await answer.json());
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
} catch (error) {
  byId("state").textContent = `The description cannot be read: ${error.message}`;
}
