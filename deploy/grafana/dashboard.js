// Draws the panels of dashboards/*.json from the Prometheus that serves this page as --web.user-assets:
// for machines without Grafana. Every variable is on All; colours, thresholds and axes are Grafana's alone.

const EVERY_S = 5;
const SCRAPE_S = 5; // scrape_interval of deploy/prometheus/*.yml
const COLOURS = ["#4c8dff", "#e8833a", "#35a853", "#c14fc9", "#d8a800", "#1fa5a5", "#e0566f", "#8a7bff"];
const UNITS = { bytes: "B", reqps: "requests/s", ops: "/s", rowsps: "rows/s", "tok/s": "tokens/s" };
const SUFFIXES = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
  bytes: [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]],
};
const WIDTH = 600;
const HEIGHT = 100;

const find = (id) => document.getElementById(id);

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function draw(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

async function fetchJson(address) {
  const answer = await fetch(address);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `status ${answer.status}`);
  return body;
}

/** A number in its unit, as a person reads it. */
function spell(value, unit) {
  if (unit === "percentunit") return `${+(value * 100).toPrecision(3)} %`;
  const [scale, suffix] = SUFFIXES[unit]?.find(([scale]) => Math.abs(value) >= scale) ?? [1, UNITS[unit] ?? unit ?? ""];
  return `${(value / scale).toLocaleString("en", { maximumSignificantDigits: 3 })} ${suffix}`.trim();
}

/** What the legend calls a series. */
function nameOf(target, metric) {
  if (target.legendFormat) return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? "");
  return Object.entries(metric).filter(([label]) => label !== "__name__").map(([label, value]) => `${label}=${value}`).join(", ");
}

/** The series of all targets of a panel: name and points of [seconds, number]. */
async function query(panel, variables, range) {
  const step = Math.max(SCRAPE_S, Math.ceil(range / 240));
  const end = Math.floor(Date.now() / 1000 / step) * step;
  const found = await Promise.all(panel.targets.map(async (target) => {
    let expression = target.expr
      .replaceAll("$__rate_interval", `${Math.max(4 * SCRAPE_S, step + SCRAPE_S)}s`);
    for (const name of variables) expression = expression.replaceAll(`$${name}`, ".*");
    const words = new URLSearchParams({ query: expression, start: end - range, end, step });
    const { data } = await fetchJson(`../api/v1/query_range?${words}`);
    return data.result.map(({ metric, values }) => ({
      name: nameOf(target, metric),
      points: values.map(([seconds, text]) => [seconds, Number(text)]).filter(([, value]) => Number.isFinite(value)),
    }));
  }));
  return { series: found.flat().filter(({ points }) => points.length), end, step };
}

function chart({ series, end, step }, unit) {
  const values = series.flatMap(({ points }) => points.map(([, value]) => value));
  const top = Math.max(...values, 0);
  const bottom = Math.min(...values, 0);
  const first = Math.min(...series.map(({ points }) => points[0][0]), end - 1); // a young server's lines fill the width
  const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const list = make("ul");
  series.forEach(({ name, points }, index) => {
    const colour = COLOURS[index % COLOURS.length];
    const line = points.map(([seconds, value], at) => {
      const x = ((seconds - first) / (end - first)) * WIDTH;
      const y = HEIGHT - 1 - ((value - bottom) / (top - bottom || 1)) * (HEIGHT - 2);
      const joined = at > 0 && seconds - points[at - 1][0] <= step;
      return `${joined ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}h0.1`; // h: a point alone is seen too
    });
    picture.append(draw("path", { d: line.join(""), stroke: colour }));
    const item = make("li", {}, `${name} ${spell(points.at(-1)[1], unit)}`.trim());
    item.style.setProperty("--colour", colour);
    list.append(item);
  });
  const since = new Date(first * 1000).toLocaleTimeString();
  const limits = make("p", {}, `${spell(bottom, unit)} to ${spell(top, unit)} since ${since}`);
  return [picture, limits, list];
}

/** How many there are in each bucket, over time: darker is more. */
function heatmap({ series, end, step }, unit) {
  const bound = ({ name }) => (name === "+Inf" ? Infinity : Number(name));
  const rows = [...series].sort((a, b) => bound(a) - bound(b));
  const first = Math.min(...rows.map(({ points }) => points[0][0]), end - 1);
  const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  let below = new Map();
  const cells = rows.map(({ points }) => {
    const counts = points.map(([seconds, value]) => [seconds, Math.max(0, value - (below.get(seconds) ?? 0))]);
    below = new Map(points); // Prometheus counts what is up to each bound
    return counts;
  });
  const most = Math.max(...cells.flat().map(([, value]) => value)) || 1;
  const width = (step / (end - first + step)) * WIDTH;
  const height = HEIGHT / rows.length;
  cells.forEach((counts, index) => {
    for (const [seconds, value] of counts) {
      const x = ((seconds - first) / (end - first + step)) * WIDTH;
      const y = HEIGHT - (index + 1) * height;
      picture.append(draw("rect", { x, y, width, height, fill: COLOURS[1], "fill-opacity": Math.sqrt(value / most).toFixed(2) }));
    }
  });
  const since = new Date(first * 1000).toLocaleTimeString();
  const [least, highest] = [rows[0], rows.at(-2) ?? rows[0]].map((one) => spell(bound(one), unit));
  return [picture, make("p", {}, `up to ${least} (below) to over ${highest} (above) since ${since}`)];
}

class Panel {
  constructor(panel) {
    this.panel = panel;
    this.unit = panel.fieldConfig?.defaults?.unit;
    this.body = make("div");
    this.element = make("section", { className: "panel", title: panel.description ?? "" }, make("h2", {}, panel.title), this.body);
    this.element.style.gridColumn = `span ${panel.gridPos.w}`;
  }

  /** Whether the panel has data; what went wrong stands in its place. */
  async refresh(variables, range) {
    try {
      const found = await query(this.panel, variables, range);
      this.body.replaceChildren(...this.#content(found));
      return found.series.length > 0;
    } catch (error) {
      this.body.replaceChildren(make("p", { className: "failed" }, String(error.message ?? error)));
      return false;
    }
  }

  #content(found) {
    if (!found.series.length) return [make("p", {}, "no data in this time")];
    if (this.panel.type === "heatmap") return heatmap(found, this.unit);
    if (this.panel.type !== "stat") return chart(found, this.unit);
    return found.series.map(({ points }) => make("p", { className: "value" }, spell(points.at(-1)[1], this.unit)));
  }
}

class Dashboard {
  constructor(content) {
    this.variables = content.templating.list.map(({ name }) => name).sort((a, b) => b.length - a.length);
    this.panels = [];
    const elements = content.panels.flatMap((row) => [row, ...(row.panels ?? [])]).map((panel) => {
      if (panel.type === "row") return make("h2", { className: "row" }, panel.title);
      if (!panel.targets?.length) return "";
      this.panels.push(new Panel(panel));
      return this.panels.at(-1).element;
    });
    find("panels").replaceChildren(...elements);
  }

  async refresh() {
    const range = Number(find("range").value);
    const full = await Promise.all(this.panels.map((panel) => panel.refresh(this.variables, range)));
    const { data } = await fetchJson(`../api/v1/query?${new URLSearchParams({ query: 'up{job="lanewise"}' })}`);
    const down = data.result.filter(({ value }) => value[1] !== "1").map(({ metric }) => metric.instance);
    say(down.length ? `${down.join(", ")} does not answer` : `${full.filter(Boolean).length} of ${full.length} panels have data`, down.length);
  }
}

function say(text, failed) {
  find("state").textContent = text;
  find("state").classList.toggle("failed", Boolean(failed));
}

let shown;
async function refresh() {
  try {
    await shown?.refresh();
  } catch (error) {
    say(`Prometheus does not answer: ${error.message}`, true);
  }
}

async function open() {
  shown = new Dashboard(await fetchJson(`dashboards/${find("dashboard").value}`));
  await refresh();
}

async function start() {
  const listing = new DOMParser().parseFromString(await (await fetch("dashboards/")).text(), "text/html");
  const files = [...listing.querySelectorAll("a")].map((link) => link.getAttribute("href")).filter((file) => file.endsWith(".json"));
  files.sort((a, b) => a.length - b.length); // that for users has the shortest name
  find("dashboard").append(...files.map((file) => make("option", { value: file }, file.replace(".json", ""))));
  find("dashboard").addEventListener("change", open);
  find("range").addEventListener("change", refresh);
  await open();
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY_S * 1000));
    await refresh();
  }
}

start().catch((error) => say(error.message, true));
