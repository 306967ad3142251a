// The page: the list of conversations, the composer, keys, and the state of the server.

import { properties } from "./api.js";
import { Chat, symbol } from "./chat.js";
import { askKey, prepare } from "./settings.js";
import * as store from "./store.js";

const $ = (id) => document.getElementById(id);
const IDEAS = ["Tell me a story about a brave fox", "Explain why the sky is blue", "Write a haiku about winter", "Give me three names for a cat"];

let server = null;
let chat = null;

const callbacks = { changed: refresh, failed: fail };

function open(conversation) {
  if (chat?.busy) chat.stop();
  chat = new Chat(conversation, callbacks);
  notice("");
  chat.show();
  refresh();
  side(false);
  $("input").focus();
}

function begin() {
  const unused = store.all().find((one) => !one.messages.length);
  open(unused ?? store.create());
}

function refresh() {
  $("title").textContent = chat.conversation.title;
  $("send").setAttribute("aria-label", chat.busy ? "Stop" : "Send");
  $("send").querySelector("use").setAttribute("href", chat.busy ? "#i-stop" : "#i-send");
  const used = chat.conversation.used;
  $("figures").textContent = used && server ? `${used.toLocaleString()} of ${server.n_ctx.toLocaleString()} tokens of context used` : "";
  $("list").replaceChildren(...store.all().filter((one) => one.messages.length || one === chat.conversation).map(entry));
}

function entry(conversation) {
  const item = document.createElement("li");
  const button = (className, label, icon, action) => {
    const made = Object.assign(document.createElement("button"), { className, type: "button" });
    if (icon) made.append(symbol(icon));
    else made.textContent = label;
    if (icon) made.setAttribute("aria-label", `${label} ${conversation.title}`);
    made.addEventListener("click", action);
    return made;
  };
  const here = conversation === chat.conversation;
  item.classList.toggle("here", here);
  const name = button("open", conversation.title, null, () => open(conversation));
  if (here) name.setAttribute("aria-current", "true");
  item.append(
    name,
    button("icon", "Rename", "edit", () => rename(conversation, item)),
    button("icon", "Delete", "bin", () => remove(conversation)),
  );
  return item;
}

function rename(conversation, item) {
  const field = Object.assign(document.createElement("input"), { value: conversation.title, maxLength: 100 });
  field.setAttribute("aria-label", "Title");
  item.replaceChildren(field);
  field.select();
  const done = () => {
    conversation.title = field.value.trim() || conversation.title;
    store.save();
    refresh();
  };
  field.addEventListener("blur", done, { once: true });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") field.value = "";
    if (event.key === "Enter" || event.key === "Escape") field.blur();
    event.stopPropagation();
  });
}

function remove(conversation) {
  if (!confirm(`Delete “${conversation.title}”?`)) return;
  if (conversation === chat.conversation) chat.stop();
  store.remove(conversation.id);
  if (conversation === chat.conversation) open(store.all()[0] ?? store.create());
  else refresh();
}

function notice(text, label, action) {
  $("notice").hidden = !text;
  $("notice").replaceChildren(text);
  if (!label) return;
  const button = Object.assign(document.createElement("button"), { textContent: label, type: "button" });
  button.addEventListener("click", () => {
    notice("");
    action();
  });
  $("notice").append(button);
}

async function fail(error) {
  if (error.status === 401) {
    await askKey();
    connect();
  }
  const { messages } = chat.conversation;
  notice(error.message, "Try again", () => {
    if (messages.length && !chat.busy) chat.answer();
  });
}

async function connect() {
  try {
    server = await properties();
  } catch (error) {
    $("model").classList.remove("up");
    $("model").textContent = error.status === 503 ? "loading model…" : error.status === 401 ? "API key needed" : "no server";
    if (error.status === 401) await askKey();
    setTimeout(connect, 1000);
    return;
  }
  $("model").textContent = `${server.model} · ${server.device}`;
  $("model").title = `${server.model} on ${server.device} (${server.version})`;
  $("model").classList.add("up");
  refresh();
}

function submit() {
  const text = $("input").value;
  if (chat.busy) return chat.stop();
  if (!text.trim()) return;
  $("input").value = "";
  grow();
  notice("");
  chat.send(text);
}

function grow() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight + 2}px`;
}

function side(open) {
  document.body.classList.toggle("side", open);
  $("menu").setAttribute("aria-expanded", String(open));
}

function download() {
  const url = URL.createObjectURL(new Blob([store.exported()], { type: "application/json" }));
  Object.assign(document.createElement("a"), { href: url, download: "bitnet-conversations.json" }).click();
  URL.revokeObjectURL(url);
}

async function upload() {
  try {
    const count = store.imported(await $("file").files[0].text());
    $("status").textContent = `${count} conversations imported`;
    refresh();
  } catch {
    notice("This file holds no conversations that could be taken in.");
  }
  $("file").value = "";
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!chat.busy) submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    begin();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("side")) side(false);
    else chat.stop();
  }
});
$("new").addEventListener("click", begin);
$("menu").addEventListener("click", () => side(!document.body.classList.contains("side")));
$("shade").addEventListener("click", () => side(false));
$("export").addEventListener("click", download);
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", upload);
for (const idea of IDEAS) {
  const button = Object.assign(document.createElement("button"), { textContent: idea, type: "button" });
  button.addEventListener("click", () => chat.busy || chat.send(idea));
  $("ideas").append(button);
}

prepare();
open(store.all()[0] ?? store.create());
connect();
