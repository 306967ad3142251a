// The settings dialog, the API key dialog and the theme.

import { setKey } from "./api.js";
import { saveSettings, settings } from "./store.js";

const $ = (id) => document.getElementById(id);
// The numbers that a request may have; the page answers to keys and clicks before they have come.
const numbers = fetch("/static/options.json").then((response) => response.json());

export function prepare() {
  numbers.then(addFields);
  $("s-system").addEventListener("change", () => {
    settings.system = $("s-system").value;
    saveSettings();
  });
  $("s-reset").addEventListener("click", () => {
    const { theme } = settings;
    for (const name of Object.keys(settings)) delete settings[name];
    if (theme) settings.theme = theme;
    saveSettings();
    show();
  });
  $("settings").addEventListener("click", () => {
    show();
    $("panel").showModal();
  });
  $("theme").addEventListener("click", () => {
    settings.theme = dark() ? "light" : "dark";
    saveSettings();
    paint();
  });
  paint();
}

function addFields(found) {
  for (const { name, label, help, min, max, step } of found) {
    const field = Object.assign(document.createElement("input"), { type: "number", title: help, min, max: max ?? "", step });
    const box = document.createElement("label");
    box.append(label, field);
    field.dataset.name = name;
    field.value = settings[name] ?? "";
    field.addEventListener("change", () => {
      if (field.value === "" || !field.checkValidity()) delete settings[name];
      else settings[name] = Number(field.value);
      saveSettings();
    });
    $("numbers").append(box);
  }
}

const dark = () => (settings.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function paint() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
}

function show() {
  $("s-system").value = settings.system ?? "";
  for (const field of document.querySelectorAll("#numbers input")) field.value = settings[field.dataset.name] ?? "";
}

// The fields of a request that the user has set.
export async function parameters() {
  const chosen = (await numbers).map(({ name }) => [name, settings[name]]).filter(([, value]) => Number.isFinite(value));
  return Object.fromEntries(chosen);
}

// Resolves once a key was given.
export function askKey() {
  return new Promise((resolve) => {
    $("keys").addEventListener("close", () => {
      setKey($("key").value.trim());
      resolve();
    }, { once: true });
    if (!$("keys").open) $("keys").showModal();
  });
}
