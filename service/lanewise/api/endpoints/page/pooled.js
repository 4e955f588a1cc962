// The page of a model that makes vectors, ranks or labels: texts in, a table out, the best first.

import { post } from "./api.js";

const byId = (id) => document.getElementById(id);
const TITLES = { score: ["Score", "Text"], classify: ["Label", "Probability", "Text"] };

/** What such a model is asked for here: "score" or "classify"; null for a model that writes text. */
export function taskOf(model) {
  const tasks = model?.supported_tasks ?? [];
  return Object.keys(TITLES).find((task) => tasks.includes(task)) ?? null;
}

/** Show the form of a task in place of the conversation; null: the conversation. */
export function showPooled(task) {
  const form = byId("pooled");
  form.hidden = task === null;
  form.dataset.task = task ?? "";
  for (const id of ["scroller", "composer", "modes", "new", "show-request"]) byId(id).hidden = task !== null;
  byId("pooled-query").hidden = task !== "score";
}

async function scored(model, query, texts) {
  const { data } = await post("v1/score", { model, text_1: query, text_2: texts });
  const rows = data.map(({ index, score }) => ({ order: score, cells: [score.toFixed(4), texts[index]] }));
  return rows.sort((one, other) => other.order - one.order);
}

async function classified(model, texts) {
  const { data } = await post("v1/classify", { model, input: texts });
  return data.map(({ index, label, probs }) => {
    const probability = Math.max(...probs);
    return { order: index, cells: [label ?? "", probability.toFixed(4), texts[index]] };
  });
}

function showRows(task, rows) {
  const table = byId("pooled-rows");
  const line = (tag, cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((text) => Object.assign(document.createElement(tag), { textContent: text })));
    return row;
  };
  const head = line("th", TITLES[task]);
  for (const cell of head.children) cell.scope = "col";
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows.map(({ cells }) => line("td", cells)));
  table.hidden = false;
}

/** ``withKey`` asks for a key where one is wanted, ``model`` gives the model's name. */
export function setUpPooled(withKey, model) {
  const form = byId("pooled");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { task } = form.dataset;
    const texts = form.elements.texts.value.split("\n").filter((line) => line.trim());
    const query = form.elements.query.value;
    const error = byId("pooled-error");
    error.hidden = true;
    async function* asked() {
      yield task === "score" ? await scored(model(), query, texts) : await classified(model(), texts);
    }
    try {
      if (!texts.length || (task === "score" && !query.trim())) throw new Error("There is a text missing.");
      for await (const rows of withKey(asked)) showRows(task, rows);
      byId("status").textContent = `${texts.length} texts`;
    } catch (failure) {
      byId("pooled-rows").hidden = true;
      error.textContent = failure.message;
      error.hidden = false;
    }
  });
}
