// The elements of a message: text, thoughts, files, and the row of buttons below.

import { block } from "./attachments.js";
import { versions } from "./conversation.js";
import { copy, iconButton, make, symbol } from "./dom.js";
import { render } from "./markdown.js";

// actions: {edit, redo, proceed, choose, remove}, each called with a message; `last` and `busy` decide which are offered.
export function messageElement(message, conversation, { last, busy, actions }) {
  const mine = message.role === "user";
  const body = make("div", { className: "body" });
  const element = make("article", { className: `message ${message.role}`, label: mine ? "You" : "Answer" });
  element.message = message;
  if (message.summary) element.append(summary(message.summary));
  if (message.files?.length) element.append(make("div", { className: "files" }, ...message.files.map(block)));
  if (message.content || !mine) element.append(body);
  fill(element, message, busy && last);
  if (!(busy && last)) element.append(buttons(message, conversation, { last, actions, element }));
  return element;
}

// Show the text of a message as far as it has come.
export function fill(element, message, growing) {
  const body = element.querySelector(".body");
  if (message.thoughts) showThoughts(element, message, growing && !message.content);
  if (!body) return;
  body.classList.toggle("waiting", growing && !message.content);
  if (message.role === "user") body.textContent = message.content;
  else render(body, message.content);
}

function summary(text) {
  const note = "Earlier turns are sent to the model as a summary";
  return make("details", { className: "fold" }, make("summary", { textContent: note }), make("div", { textContent: text }));
}

function showThoughts(element, { thoughts, thought }, growing) {
  let box = element.querySelector(".thoughts");
  if (!box) {
    box = make("details", { className: "fold thoughts" }, make("summary", {}), make("div", {}));
    element.prepend(box);
  }
  const seconds = thought >= 0.1 ? ` for ${thought < 10 ? thought.toFixed(1) : Math.round(thought)} s` : "";
  box.firstChild.textContent = growing ? "Thinking…" : `Thought${seconds}`;
  box.lastChild.textContent = thoughts.trim();
}

function buttons(message, conversation, { last, actions, element }) {
  const row = make("div", { className: "tools" });
  const branches = versions(conversation, message);
  if (branches.length > 1) row.append(...arrows(message, branches, actions));
  row.append(copyButton(message));
  const edit = message.role === "user" ? "Edit and send again" : "Edit this answer";
  row.append(iconButton("edit", edit, () => actions.edit(message, element)));
  if (message.role === "assistant") row.append(iconButton("redo", "Write another answer", () => actions.redo(message)));
  if (last && message.role === "assistant" && message.content) {
    row.append(iconButton("more", "Continue this answer", () => actions.proceed()));
  }
  if (last && message.role === "user") row.append(iconButton("redo", "Answer this message", () => actions.proceed()));
  row.append(iconButton("bin", "Delete this and what follows", () => actions.remove(message)));
  const notes = [message.speed, message.finish === "length" ? "cut off at the limit" : ""].filter(Boolean);
  if (notes.length) row.append(make("span", { textContent: notes.join(" · ") }));
  return row;
}

function copyButton(message) {
  const button = iconButton("copy", "Copy message", async () => {
    await copy(message.content);
    button.replaceChildren(symbol("done"));
    setTimeout(() => button.replaceChildren(symbol("copy")), 1500);
  });
  return button;
}

function arrows(message, branches, actions) {
  const at = branches.indexOf(message);
  const step = (icon, label, to) => {
    const button = iconButton(icon, label, () => actions.choose(branches[to]));
    button.disabled = !branches[to];
    return button;
  };
  const count = make("span", { className: "count", textContent: `${at + 1}/${branches.length}` });
  return [step("left", "Earlier version", at - 1), count, step("right", "Later version", at + 1)];
}

// A text area in place of a message; `send` gets the new text.
export function editor(message, { send, cancel }) {
  const area = make("textarea", { className: "edit", value: message.content, label: "Edited message" });
  const done = () => (area.value.trim() || message.files?.length) && send(area.value);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") cancel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done();
    if (event.key === "Escape") event.stopPropagation();
  });
  const row = make("div", { className: "row" },
    make("button", { textContent: "Cancel", on: { click: cancel } }),
    make("button", { textContent: message.role === "user" ? "Send" : "Keep", className: "main", on: { click: done } }));
  return [area, row];
}
