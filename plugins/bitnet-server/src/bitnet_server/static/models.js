// The menu of models, where the server has several.

import { modelOf } from "./choices.js";
import { $, make } from "./dom.js";
import { check, server } from "./server.js";
import { save, saveSettings, settings } from "./store.js";

let conversation = null;

export function showModels(shown) {
  conversation = shown;
  const menu = $("models");
  menu.hidden = server.models.length < 2;
  if (menu.hidden || menu === document.activeElement) return;
  menu.replaceChildren(...server.models.map((model) => make("option", { value: model.id, textContent: named(model) })));
  menu.value = modelOf(conversation).id;
}

const named = ({ id, status }) => (status?.value && status.value !== "loaded" ? `${id} (${status.value})` : id);

// The choice is for this conversation, and for those that begin after it.
$("models").addEventListener("change", () => {
  conversation.settings.model = settings.model = $("models").value;
  saveSettings();
  if (conversation.messages.length) save(conversation);
  check();
});
