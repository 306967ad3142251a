// The line above the composer: what went wrong, and what can be done about it.

import { $, make } from "./dom.js";

// offers: [label, action] pairs, shown as buttons.
export function notice(text, ...offers) {
  $("notice").hidden = !text;
  const buttons = offers.map(([label, action]) => {
    const click = () => {
      notice("");
      action();
    };
    return make("button", { textContent: label, on: { click } });
  });
  $("notice").replaceChildren(make("span", { textContent: text }), make("div", { className: "offers" }, ...buttons));
}
