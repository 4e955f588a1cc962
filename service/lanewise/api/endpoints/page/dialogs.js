// The two dialogs: the key, which is asked for when the server wants one, and the request as text.

import { hasKey, setKey } from "./api.js";
import { copy } from "./copy.js";

const byId = (id) => document.getElementById(id);

/** Ask for a key; true when one was given. */
export function askForKey(why) {
  const dialog = byId("key-dialog");
  byId("key-why").textContent = why;
  byId("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  byId("key").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use" && hasKey()), { once: true });
  });
}

export function showRequest(curl, python) {
  byId("curl").textContent = curl;
  byId("python").textContent = python;
  byId("request-dialog").showModal();
}

export function setUpDialogs() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    byId("key").value = "";
    byId("key-dialog").close("use");
  });
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close(""));
  byId("request-close").addEventListener("click", () => byId("request-dialog").close());
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", async () => {
      await copy(byId(button.dataset.copies).textContent);
      byId("status").textContent = "Copied";
    });
  }
}
