// Ties the page together: what is asked, what comes back, and what the keys and buttons do.

import { ApiError, get, stream, urlOf } from "./api.js";
import { Conversation } from "./conversation.js";
import { askForKey, setUpDialogs, showRequest } from "./dialogs.js";
import { Numbers } from "./numbers.js";
import { Settings, SettingsError } from "./settings.js";
import { curlOf, pythonOf } from "./snippets.js";
import { load, save } from "./storage.js";
import { tokensOf } from "./tokens.js";

const MODES = {
  chat: {
    path: "v1/chat/completions", asks: "user", answers: "assistant", label: "Message",
    empty: "Ask the model something: its answer appears here while it is made.",
  },
  completion: {
    path: "v1/completions", asks: "prompt", answers: "completion", label: "Text to continue",
    empty: "Give the model the beginning of a text: it goes on from there.",
  },
};
const NEAR_END = 60; // pixels: who has scrolled further up stays there
const WIDE = matchMedia("(min-width: 60rem)");

const byId = (id) => document.getElementById(id);
const settings = new Settings(byId("settings-form"));
const conversations = {};
let mode = "chat";
let running = null; // the AbortController of the request that is answered

function conversation() {
  return conversations[mode];
}

function announce(text) {
  byId("status").textContent = text;
}

function showBanner(text) {
  byId("banner").textContent = text;
  byId("banner").hidden = !text;
}

function bodyOf() {
  const { asks } = MODES[mode];
  const draft = byId("input").value;
  const body = conversation().toBody(byId("system").value.trim());
  if (!running && draft.trim()) {
    if (mode === "chat") body.messages.push({ role: asks, content: draft });
    else body.prompt = draft;
  }
  return {
    model: byId("model").value,
    ...body,
    stream: true,
    stream_options: { include_usage: true },
    ...settings.toBody(mode === "chat"),
  };
}

/** The body of a request; null when a setting forbids it, which is then shown. */
function checkedBody() {
  try {
    return bodyOf();
  } catch (error) {
    if (!(error instanceof SettingsError)) throw error;
    openSettings(true);
    settings.showError(error);
    return null;
  }
}

function send() {
  const text = byId("input").value;
  if (running || !text.trim() || checkedBody() === null) return;
  if (mode === "completion") conversation().clear();
  conversation().add(MODES[mode].asks, text);
  byId("input").value = "";
  fitInput();
  ask();
}

/** Answer what the conversation ends with. */
async function ask() {
  const body = running ? null : checkedBody();
  if (body === null) return;
  const { path, answers } = MODES[mode];
  const asked = conversation();
  const view = asked.add(answers, "");
  running = new AbortController();
  showRunning(view);
  const numbers = new Numbers();
  try {
    for await (const event of withKey(() => stream(path, body, running.signal))) take(view, numbers, event);
  } catch (error) {
    if (error.name === "AbortError") numbers.reason = "stopped";
    else view.turn.error = error instanceof ApiError ? error.message : `The answer was cut off: ${error.message}`;
  }
  running = null;
  view.turn.numbers = numbers.events || numbers.usage ? numbers.rows() : [];
  followed(() => view.end());
  showRunning(null);
  asked.keep();
  announce(view.turn.error ? "" : `Answer: ${view.turn.content}`);
}

/** What is begun gives; where a key is missing or wrong it begins again after one was given. */
async function* withKey(begin) {
  for (let why = "This server wants a key with every request."; ; why = "The server does not know this key.") {
    try {
      yield* begin();
      return;
    } catch (error) {
      if (error.status !== 401 || !(await askForKey(why))) throw error;
    }
  }
}

function take(view, numbers, event) {
  if (event.usage) numbers.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const text = choice.delta?.content ?? choice.text ?? "";
  const reasoning = choice.delta?.reasoning_content ?? "";
  const tokens = tokensOf(choice);
  if (text || reasoning || tokens.length) numbers.count();
  if (choice.finish_reason) numbers.reason = choice.finish_reason;
  view.turn.content += text;
  followed(() => view.append(text, tokens));
  if (reasoning) {
    view.turn.reasoning = (view.turn.reasoning ?? "") + reasoning;
    followed(() => view.showReasoning());
  }
}

/** Change what is shown, and stay at its end if that was where the reader is. */
function followed(change) {
  const scroller = byId("scroller");
  const wasAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;
  change();
  if (wasAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

function showRunning(view) {
  const hadFocus = document.activeElement === byId("stop") || document.activeElement === byId("send");
  byId("send").hidden = view !== null;
  byId("stop").hidden = view === null;
  byId("conversation").classList.toggle("waits", view !== null);
  showEmpty();
  if (view) {
    view.isBusy = true;
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
    announce("The model answers");
  }
  if (hadFocus || document.activeElement === document.body) byId("input").focus();
}

function stop() {
  running?.abort();
}

function showEmpty() {
  byId("empty").textContent = MODES[mode].empty;
  byId("empty").hidden = conversation().turns.length > 0;
  byId("system-box").hidden = mode !== "chat";
}

function setMode(chosen) {
  stop();
  mode = chosen;
  save("mode", mode);
  byId("input-label").textContent = MODES[mode].label;
  byId("input").placeholder = MODES[mode].label;
  conversation().show();
  showEmpty();
}

function fitInput() {
  const input = byId("input");
  input.rows = Math.min(input.value.split("\n").length, 10);
}

function editLast() {
  const asked = conversation().views.filter((view) => view.turn.role === MODES[mode].asks);
  asked.at(-1)?.edit();
}

function openSettings(open) {
  const button = byId("show-settings");
  const wasOpen = button.getAttribute("aria-expanded") === "true";
  byId("settings").hidden = !open;
  button.setAttribute("aria-expanded", String(open));
  if (open && !wasOpen && !WIDE.matches) byId("settings-title").focus();
  if (!open && wasOpen) button.focus();
}

async function loadModels() {
  async function* list() {
    yield await get("v1/models");
  }
  try {
    for await (const { data } of withKey(list)) {
      byId("model").replaceChildren(...data.map((model) => new Option(model.id, model.id)));
      const notice = data.find((model) => model.notice)?.notice ?? "";
      byId("notice").textContent = notice;
      byId("notice").hidden = !notice;
    }
    showBanner("");
  } catch (error) {
    showBanner(`The models cannot be listed: ${error.message}`);
  }
}

function setUp() {
  const list = byId("conversation");
  for (const name of Object.keys(MODES)) conversations[name] = new Conversation(name, list, ask);
  setUpDialogs();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("input").addEventListener("input", fitInput);
  byId("input").addEventListener("keydown", (event) => {
    const isPlain = !event.shiftKey && !event.isComposing;
    if (event.key === "Enter" && isPlain) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && byId("input").value === "" && !running) {
      event.preventDefault();
      editLast();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (running) stop();
    else if (!WIDE.matches && !byId("settings").hidden) openSettings(false);
  });
  byId("stop").addEventListener("click", stop);
  byId("new").addEventListener("click", () => {
    stop();
    conversation().clear();
    showEmpty();
    byId("input").focus();
  });
  byId("system").value = load("system") ?? "";
  byId("system").addEventListener("input", () => save("system", byId("system").value));
  byId("show-settings").addEventListener("click", () => openSettings(byId("settings").hidden));
  byId("hide-settings").addEventListener("click", () => openSettings(false));
  byId("change-key").addEventListener("click", async () => {
    if (await askForKey("What is sent with every request.")) loadModels();
  });
  byId("show-request").addEventListener("click", () => {
    const body = checkedBody();
    if (body === null) return;
    showRequest(curlOf(urlOf(MODES[mode].path), body), pythonOf(urlOf("v1"), mode === "chat", body));
  });
  for (const radio of document.querySelectorAll("input[name=mode]")) {
    radio.addEventListener("change", () => setMode(radio.value));
  }
  const kept = load("mode") in MODES ? load("mode") : "chat";
  document.querySelector(`input[name=mode][value=${kept}]`).checked = true;
  setMode(kept);
  openSettings(WIDE.matches);
  byId("input").focus();
  loadModels();
}

setUp();
