// System prompts kept under names in this browser.

const NAME = "lanewise.presets";

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(NAME)) ?? [];
    return found.filter((one) => typeof one?.name === "string" && typeof one.text === "string");
  } catch {
    return []; // nothing is kept here, or it is not ours
  }
}

/** ``chosen`` takes the text of a preset; ``text`` gives what is to be kept. */
export function setUpPresets(chosen, text, said) {
  const byId = (id) => document.getElementById(id);
  const list = byId("preset");
  const show = (name) => {
    list.replaceChildren(new Option("none", ""), ...kept().map((one) => new Option(one.name, one.name)));
    list.value = name;
    byId("preset-remove").disabled = !list.value;
  };
  const write = (presets, name) => {
    try {
      localStorage.setItem(NAME, JSON.stringify(presets.sort((one, other) => one.name.localeCompare(other.name))));
      said(name ? `Saved as ${name}` : "Removed");
    } catch (error) {
      said(`This browser does not keep it: ${error.message}`);
    }
    show(name);
  };
  list.addEventListener("change", () => {
    const found = kept().find((one) => one.name === list.value);
    if (found) chosen(found.text);
    show(list.value);
    byId("preset-name").value = list.value;
  });
  byId("preset-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = byId("preset-name").value.trim();
    if (name) write([...kept().filter((one) => one.name !== name), { name, text: text() }], name);
  });
  byId("preset-remove").addEventListener("click", () => {
    write(kept().filter((one) => one.name !== list.value), "");
    list.focus();
  });
  addEventListener("storage", () => show(list.value)); // another tab has written
  show("");
}
