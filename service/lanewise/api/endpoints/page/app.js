// Ties the page together: what is asked, what comes back, and what the keys and buttons do.

import { ApiError, get, stream, urlOf } from "./api.js";
import { Attachments } from "./attachments.js";
import { addCalls } from "./calls.js";
import { Conversation } from "./conversation.js";
import { askForKey, setUpDialogs, showRequest } from "./dialogs.js";
import { History } from "./history.js";
import { withImages } from "./images.js";
import { setUpMcp } from "./mcp.js";
import { Numbers } from "./numbers.js";
import { setUpPooled, showPooled, taskOf } from "./pooled.js";
import { setUpPresets } from "./presets.js";
import { Settings, SettingsError } from "./settings.js";
import { curlOf, pythonOf } from "./snippets.js";
import { load, save } from "./storage.js";
import { onChange } from "./store.js";
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
const KEPT_EACH = 1000; // milliseconds: an answer that is made is kept as far as it has come
const WIDE = matchMedia("(min-width: 60rem)");
const WIDEST = matchMedia("(min-width: 80rem)"); // has room for both sides

const byId = (id) => document.getElementById(id);
const settings = new Settings(byId("settings-form"));
const attachments = new Attachments(byId("attachments"), (why) => {
  byId("attach-error").textContent = why;
  byId("attach-error").hidden = !why;
}, () => mode === "chat" && Boolean(models.get(byId("model").value)?.capabilities?.vision));
const conversations = {};
const history = new History({
  open: openConversation,
  removed: wasRemoved,
  renamed: (id) => changedElsewhere(id, false),
  openId: () => conversation().record?.id,
});
let mode = "chat";
let frame = null; // in which the answer is drawn next
let models = new Map(); // as the server tells of each, by name
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
  const draft = attachments.with(byId("input").value);
  const body = conversation().toBody(byId("system").value.trim());
  const { images } = attachments;
  if (!running && (draft.trim() || images.length)) {
    if (mode === "chat") body.messages.push({ role: asks, content: withImages(draft, images) });
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
  const text = attachments.with(byId("input").value);
  const { images } = attachments;
  if (running || (!text.trim() && !images.length) || checkedBody() === null) return;
  if (mode === "completion") conversation().startOver();
  conversation().add(MODES[mode].asks, text, images.length ? { images } : {});
  byId("input").value = "";
  attachments.clear();
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
  const numbers = new Numbers(models.get(body.model)?.context_length ?? null);
  const asking = { ...body, return_progress: true };
  const { record } = asked;
  const keeping = setInterval(() => asked.keep(view.turn, record), KEPT_EACH);
  try {
    for await (const event of withKey(() => stream(path, asking, running.signal))) take(view, numbers, event);
  } catch (error) {
    if (error.name === "AbortError") numbers.reason = "stopped";
    else view.turn.error = error instanceof ApiError ? error.message : `The answer was cut off: ${error.message}`;
  }
  running = null;
  view.turn.numbers = numbers.events || numbers.usage ? numbers.rows() : [];
  clearInterval(keeping);
  await asked.keep(view.turn, record);
  history.show();
  followed(() => view.end());
  showRunning(null);
  const called = (view.turn.calls ?? []).map((call) => ` Calls ${call.name}.`).join("");
  announce(view.turn.error ? "" : `Answer: ${view.turn.content}${called}`);
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
  if (event.prompt_progress) view.showProgress(event.prompt_progress);
  const choice = event.choices?.[0];
  if (!choice) return;
  const text = choice.delta?.content ?? choice.text ?? "";
  const reasoning = choice.delta?.reasoning_content ?? "";
  const calls = choice.delta?.tool_calls ?? [];
  const tokens = tokensOf(choice);
  if (text || reasoning || calls.length || tokens.length) {
    if (numbers.events === 0) view.showProgress(null);
    numbers.count();
  }
  if (choice.finish_reason) numbers.reason = choice.finish_reason;
  view.turn.content += text;
  if (tokens.length) followed(() => view.append(tokens));
  else if (text) drawSoon(view);
  if (reasoning) view.turn.reasoning = (view.turn.reasoning ?? "") + reasoning;
  if (view.turn.reasoning) followed(() => view.showReasoning());
  if (calls.length) {
    addCalls((view.turn.calls ??= []), calls);
    followed(() => view.showCalls());
  }
}

/** Draw the text of an answer once for all that comes before the next frame. */
function drawSoon(view) {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    if (view === conversation().last) followed(() => view.showText());
  });
}

/** Change what is shown, and stay at its end if that was where the reader is. */
function followed(change) {
  const scroller = byId("scroller");
  const wasAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;
  change();
  if (wasAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

function cannotKeep(error) {
  showBanner(`This browser does not keep the conversation: ${error?.message ?? "no reason is given"}`);
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

/** Show a conversation of the list. */
async function openConversation(record) {
  stop();
  document.querySelector(`input[name=mode][value=${record.mode}]`).checked = true;
  await conversations[record.mode].open(record);
  setMode(record.mode);
  if (!WIDE.matches) openHistory(false);
}

/** A conversation was removed here: if it is shown, a new one is begun. */
function wasRemoved(id) {
  if (conversation().record?.id === id) stop();
  for (const one of Object.values(conversations)) if (one.record?.id === id) one.clear();
  conversation().show();
  showEmpty();
}

/** Another tab has written or removed a conversation. */
function changedElsewhere(id, isRemoved) {
  history.show();
  const shown = conversation();
  if (shown.record?.id !== id) return;
  if (isRemoved) shown.forget();
  else shown.refresh();
}

function setMode(chosen) {
  stop();
  mode = chosen;
  save("mode", mode);
  byId("input-label").textContent = MODES[mode].label;
  byId("input").placeholder = MODES[mode].label;
  conversation().show();
  showEmpty();
  history.show();
}

function fitInput() {
  const input = byId("input");
  input.rows = Math.min(input.value.split("\n").length, 10);
}

function editLast() {
  const asked = conversation().views.filter((view) => view.turn.role === MODES[mode].asks);
  asked.at(-1)?.edit();
}

/** Open or close one of the two sides, and put the focus where the reader goes on. */
function openSide(name, open) {
  const button = byId(`show-${name}`);
  const wasOpen = button.getAttribute("aria-expanded") === "true";
  byId(name).hidden = !open;
  button.setAttribute("aria-expanded", String(open));
  if (open && !wasOpen && !WIDE.matches) byId(`${name}-title`).focus();
  if (!open && wasOpen) button.focus();
}

function openSettings(open) {
  openSide("settings", open);
}

function openHistory(open) {
  openSide("history", open);
}

/** Show what the chosen model is for. */
function showModel() {
  stop();
  showPooled(taskOf(models.get(byId("model").value)));
}

async function loadModels() {
  async function* list() {
    yield await get("v1/models");
  }
  try {
    for await (const { data } of withKey(list)) {
      models = new Map(data.map((model) => [model.id, model]));
      byId("model").replaceChildren(...data.map((model) => new Option(model.id, model.id)));
      const notice = data.find((model) => model.notice)?.notice ?? "";
      byId("notice").textContent = notice;
      byId("notice").hidden = !notice;
    }
    showModel();
    showBanner("");
    // A server of another kind behind the same address has no such path.
    const props = await get("props").catch(() => null);
    settings.showDefaults(props?.default_generation_settings?.params);
  } catch (error) {
    showBanner(`The models cannot be listed: ${error.message}`);
  }
}

/** Files are chosen, dropped anywhere on the page, or pasted into the message. */
function setUpAttachments() {
  const chosen = byId("attach-file");
  byId("attach").addEventListener("click", () => chosen.click());
  chosen.addEventListener("change", async () => {
    await attachments.take([...chosen.files]);
    chosen.value = "";
    byId("input").focus();
  });
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attachments.take([...event.dataTransfer.files]);
  });
  byId("input").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attachments.take([...event.clipboardData.files]);
  });
}

function setUp() {
  setUpAttachments();
  setUpMcp(byId("mcp"));
  setUpPooled(withKey, () => byId("model").value);
  byId("model").addEventListener("change", showModel);
  const list = byId("conversation");
  for (const name of Object.keys(MODES)) conversations[name] = new Conversation(name, list, ask, cannotKeep);
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
    else if (!WIDE.matches && !byId("history").hidden) openHistory(false);
  });
  byId("stop").addEventListener("click", stop);
  byId("new").addEventListener("click", () => {
    stop();
    conversation().clear();
    showEmpty();
    history.show();
    byId("input").focus();
  });
  byId("system").value = load("system") ?? "";
  byId("system").addEventListener("input", () => save("system", byId("system").value));
  const choose = (text) => {
    byId("system").value = text;
    save("system", text);
  };
  setUpPresets(choose, () => byId("system").value, (text) => (byId("preset-said").textContent = text));
  byId("show-settings").addEventListener("click", () => openSettings(byId("settings").hidden));
  byId("hide-settings").addEventListener("click", () => openSettings(false));
  byId("show-history").addEventListener("click", () => openHistory(byId("history").hidden));
  byId("hide-history").addEventListener("click", () => openHistory(false));
  onChange(changedElsewhere);
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
  openHistory(WIDEST.matches);
  openSettings(WIDE.matches);
  byId("input").focus();
  loadModels();
  restore();
}

async function restore() {
  for (const one of Object.values(conversations)) await one.restore().catch(cannotKeep);
  conversation().show();
  showEmpty();
  history.show();
}

setUp();
