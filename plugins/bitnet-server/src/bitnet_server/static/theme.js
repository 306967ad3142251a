// Light or dark: as the system has it, until the user chooses.

import { $ } from "./dom.js";
import { saveSettings, settings } from "./store.js";

const dark = () => (settings.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

export function paint() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
}

$("theme").addEventListener("click", () => {
  settings.theme = dark() ? "light" : "dark";
  saveSettings();
  paint();
});
paint();
