// The settings dialog: values for one chat, or for all that have none of their own.

import { canThink, numbers } from "./choices.js";
import { $, make } from "./dom.js";
import { server } from "./server.js";
import { save, saveSettings, settings } from "./store.js";

let conversation = null;

const one = () => $("s-one").checked;
const values = () => (one() ? conversation.settings : settings);
const UNSET = { seed: "random", max_tokens: "no limit" };

// The value that holds where the field is empty.
function inherited(name) {
  const usual = server.props?.default_generation_settings?.params?.[name];
  return (one() ? settings[name] : undefined) ?? (usual === -1 ? undefined : usual) ?? UNSET[name] ?? "";
}

// `current` returns the conversation that is shown.
export function prepareSettings(current) {
  numbers.then((found) => $("numbers").append(...found.map(field)));
  $("settings").addEventListener("click", () => {
    conversation = current();
    show();
    $("panel").showModal();
  });
  for (const id of ["s-one", "s-all"]) $(id).addEventListener("change", show);
  for (const id of ["s-system", "s-full", "s-thinking"]) $(id).addEventListener("change", () => set($(id).dataset.name, $(id).value));
  $("s-reset").addEventListener("click", reset);
}

function field({ name, label, help, min, max, step }) {
  const input = make("input", { type: "number", title: help, min, max: max ?? "", step });
  input.dataset.name = name;
  input.addEventListener("change", () => {
    if (input.checkValidity()) set(name, input.value === "" ? "" : Number(input.value));
    else input.reportValidity();
  });
  return make("label", {}, label, input);
}

function set(name, value) {
  if (value === "") delete values()[name];
  else values()[name] = value;
  keep();
}

function keep() {
  if (!one()) saveSettings();
  else if (conversation.messages.length) save(conversation);
}

function reset() {
  const { theme, model } = values();
  for (const name of Object.keys(values())) delete values()[name];
  if (theme) values().theme = theme;
  if (model) values().model = model;
  keep();
  show();
}

function show() {
  for (const field of $("panel").querySelectorAll("[data-name]")) {
    const { name } = field.dataset;
    field.value = values()[name] ?? "";
    if (field.type === "number") field.placeholder = inherited(name);
  }
  $("s-full").firstChild.textContent = one() ? "as in all chats" : "ask (the default)";
  $("s-thinking").firstChild.textContent = one() ? "as in all chats" : "as the model does";
  $("s-system").placeholder = (one() && settings.system) || "none";
  $("s-thinking").parentElement.hidden = !canThink();
}
