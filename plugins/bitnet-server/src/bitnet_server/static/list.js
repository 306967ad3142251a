// The list of conversations: search, rename and delete.

import { underway } from "./answers.js";
import { $, iconButton, make } from "./dom.js";
import * as store from "./store.js";

// actions: {open, remove, renamed}, each called with a conversation.
export function showList(current, actions) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = store.all().filter((one) => one.messages.length || one === current).filter((one) => holds(one, words));
  $("list").replaceChildren(...found.map((one) => entry(one, one === current, words, actions)));
  $("nothing").hidden = found.length > 0;
}

const texts = ({ messages }) => messages.flatMap(({ content, files = [] }) => [content, ...files.map(({ text }) => text)]);

function holds(conversation, words) {
  if (!words.length) return true;
  const all = [conversation.title, ...texts(conversation)].join("\n").toLowerCase();
  return words.every((word) => all.includes(word));
}

function entry(conversation, here, words, actions) {
  const { title } = conversation;
  const name = make("button", { className: "open", on: { click: () => actions.open(conversation) } }, make("span", { textContent: title }));
  const found = words.length ? excerpt(conversation, words[0]) : "";
  if (found && found !== title) name.append(make("small", { textContent: found }));
  if (here) name.setAttribute("aria-current", "true");
  const item = make("li", { className: here ? "here" : "" }, name);
  if (underway(conversation)) item.append(make("span", { className: "beat", title: "An answer is being written" }));
  item.append(
    iconButton("edit", `Rename ${title}`, () => rename(conversation, item, actions)),
    iconButton("bin", `Delete ${title}`, () => actions.remove(conversation)),
  );
  return item;
}

// The words around the first place of a word.
function excerpt(conversation, word) {
  for (const text of texts(conversation)) {
    const at = text.toLowerCase().indexOf(word);
    if (at >= 0) return `${at > 20 ? "…" : ""}${text.slice(Math.max(0, at - 20), at + 60).replace(/\s+/g, " ")}`;
  }
  return "";
}

function rename(conversation, item, actions) {
  const field = make("input", { value: conversation.title, maxLength: 100, label: "Title" });
  item.replaceChildren(field);
  field.select();
  const done = () => {
    conversation.title = field.value.trim() || conversation.title;
    actions.renamed(conversation);
  };
  field.addEventListener("blur", done, { once: true });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") field.value = "";
    if (event.key === "Enter" || event.key === "Escape") field.blur();
    event.stopPropagation();
  });
}
