// The line above the composer: what went wrong, and what can be done about it.

import { $, make } from "./dom.js";

// Say what failed. offers: [label, action] pairs, shown as buttons.
export function notice(text, ...offers) {
  show(text, offers, false);
}

// Say something that is not a failure.
export function hint(text, ...offers) {
  show(text, offers, true);
}

function show(text, offers, calm) {
  $("notice").hidden = !text;
  $("notice").classList.toggle("calm", calm);
  const buttons = offers.map(([label, action]) => {
    const click = () => {
      notice("");
      action();
    };
    return make("button", { textContent: label, on: { click } });
  });
  $("notice").replaceChildren(make("span", { textContent: text }), make("div", { className: "offers" }, ...buttons));
}
