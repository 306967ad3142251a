// The dialog that asks for an API key.

import { hasKey, setKey } from "./api.js";
import { $ } from "./dom.js";

// Resolves to true if the user gave a key, to false if the dialog was closed without one.
export function askKey() {
  return new Promise((resolve) => {
    const dialog = $("keys");
    $("refused").hidden = !hasKey();
    $("key").value = "";
    const done = () => {
      const key = dialog.returnValue === "ok" ? $("key").value.trim() : "";
      if (key) setKey(key);
      resolve(Boolean(key));
    };
    dialog.returnValue = "";
    dialog.addEventListener("close", done, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}
