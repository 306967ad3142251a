// The page: which conversation is shown, and what the user does with it.

import * as answers from "./answers.js";
import { contextOf, modelOf } from "./choices.js";
import { prepareComposer, showBusy } from "./composer.js";
import { add, before, choose, path, remove as removeMessage, titleOf } from "./conversation.js";
import { $, announce, copy, download, make } from "./dom.js";
import { offerRoom } from "./full.js";
import { askKey } from "./key.js";
import { showList } from "./list.js";
import { editIn, grow, showLog } from "./log.js";
import { showModels } from "./models.js";
import { notice } from "./notice.js";
import { check, listen as listenToServer, server } from "./server.js";
import { prepareSettings } from "./settings.js";
import * as store from "./store.js";
import { paint } from "./theme.js";
import { fileName, transcript } from "./transcript.js";

const IDEAS = [
  "Tell me a story about a brave fox",
  "Explain why the sky is blue",
  "Write a haiku about winter",
  "Give me three names for a cat",
];

let shown = null;
const failures = new Map(); // conversation's id -> what shows its notice

const busy = () => Boolean(answers.underway(shown));

function open(conversation) {
  shown = conversation;
  notice("");
  failures.get(conversation.id)?.();
  showLog(shown, actions);
  refresh();
  side(false);
  $("input").focus();
  if (server.models.length > 1) check(); // it may have another model
}

function begin() {
  $("search").value = ""; // which would hide the new chat
  open(store.all().find((one) => !one.messages.length) ?? store.create());
}

function refresh() {
  $("title").textContent = shown.title;
  document.title = shown.messages.length ? `${shown.title} · bitnet` : "bitnet";
  for (const id of ["copy-chat", "save-chat"]) $(id).hidden = !shown.messages.length;
  showBusy(busy());
  showFigures();
  showModels(shown);
  showList(shown, { open, remove, renamed });
}

function showFigures() {
  const [used, context] = [shown.used, contextOf(shown)];
  const tight = used > 0.9 * context;
  $("figures").classList.toggle("tight", tight);
  const text = `${used?.toLocaleString()} of ${context.toLocaleString()} tokens of context used`;
  $("figures").textContent = used && context && shown.messages.length ? text : "";
}

function renamed(conversation) {
  keep(conversation);
  refresh();
}

function keep(conversation) {
  if (!store.save(conversation)) notice("The browser has no room left: export your conversations and delete some.");
}

function remove(conversation) {
  if (!confirm(`Delete “${conversation.title}”?`)) return;
  answers.stop(conversation);
  store.remove(conversation.id);
  if (conversation === shown) open(store.all()[0] ?? store.create());
  else refresh();
}

// What the user does with messages.

function send(text, files = []) {
  if (!shown.messages.length) shown.title = titleOf(text.trim() || files[0].name);
  add(shown, { role: "user", content: text, ...(files.length ? { files } : {}) });
  respond();
}

function respond(conversation = shown) {
  notice("");
  failures.delete(conversation.id);
  answers.answer(conversation);
}

const actions = {
  redo(message) {
    if (busy()) return;
    before(shown, message);
    respond();
  },
  proceed() {
    if (!busy()) respond();
  },
  choose(message) {
    if (busy()) return;
    choose(shown, message);
    keep(shown);
    showLog(shown, actions, { follow: false });
  },
  edit(message, element) {
    if (busy()) return;
    const show = () => showLog(shown, actions, { follow: false });
    const done = (content) => {
      before(shown, message);
      if (message.role === "user") return send(content, message.files);
      add(shown, { role: "assistant", content });
      keep(shown);
      show();
    };
    editIn(element, message, { send: done, cancel: show });
  },
  remove(message) {
    if (busy() || !confirm("Delete this message and what follows it?")) return;
    removeMessage(shown, message);
    keep(shown);
    showLog(shown, actions, { follow: false });
    refresh();
  },
};

function editLast() {
  const message = path(shown).findLast(({ role }) => role === "user");
  if (!message || busy()) return;
  const at = path(shown).indexOf(message);
  actions.edit(message, $("log").children[at]);
}

// Start a new conversation with the last message of this one.
function anew() {
  const { content, files } = path(shown).findLast(({ role }) => role === "user");
  const { full, ...settings } = shown.settings;
  begin();
  shown.settings = settings;
  send(content, files);
}

// What happens to answers.

function began(conversation) {
  if (conversation === shown) showLog(shown, actions);
  refresh();
  if (server.props?.state === "unloaded") check(); // it is loaded for this answer
}

function ended(conversation, message, failure) {
  const context = contextOf(conversation);
  const full = message.finish === "length" && context > 0 && conversation.used >= context;
  if (failure || full) failures.set(conversation.id, () => fail(conversation, message, failure));
  if (conversation === shown) {
    showLog(shown, actions, { follow: false });
    failures.get(conversation.id)?.();
    announce(message.content ? `Answer: ${message.content.slice(0, 600)}` : "");
  }
  refresh();
  if (failure) check();
}

function fail(conversation, message, failure) {
  const retry = () => {
    if (!conversation.messages.includes(message)) conversation.leaf = message.parent;
    respond(conversation);
  };
  const failed = (error) => fail(conversation, message, error);
  if (!failure || failure.code === "context_length_exceeded") offerRoom(conversation, { retry, editLast, anew, begin, failed });
  else notice(failure.message, ["Try again", retry]);
}

// The server, other tabs, keys and buttons.

async function serverChanged() {
  $("model").textContent = server.text;
  $("model").title = server.props ? `${server.text} (${server.props.version})` : server.text;
  $("model").dataset.state = server.state;
  $("model").classList.toggle("up", server.state === "ready" || server.state === "busy");
  showModels(shown);
  showFigures();
  if (server.state !== "key" || $("keys").open) return;
  if (await askKey()) check();
  else notice("This server wants an API key.", ["Enter a key", check]);
}

function otherTab(id) {
  paint();
  if (!store.find(shown.id)) {
    answers.stop(shown);
    return open(store.all()[0] ?? store.create());
  }
  const writing = busy() || $("log").querySelector(".editing");
  if ((id === null || id === shown.id) && !writing) showLog(shown, actions, { follow: false });
  refresh();
}

function side(wanted) {
  const visible = wanted && matchMedia("(max-width: 760px)").matches;
  document.body.classList.toggle("side", visible);
  $("menu").setAttribute("aria-expanded", String(visible));
}

async function upload() {
  try {
    const count = store.imported(await $("file").files[0].text());
    announce(`${count} conversations imported`);
    refresh();
  } catch {
    notice("This file holds no conversations that could be imported.");
  }
  $("file").value = "";
}

document.addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  if (document.querySelector("dialog[open]")) return;
  if (command && event.key === "k") begin();
  else if (command && event.key === "/") {
    side(true);
    $("search").focus();
  } else if (event.key === "Escape") {
    if (document.body.classList.contains("side")) side(false);
    else if (event.target !== $("search")) answers.stop(shown);
    return;
  } else return;
  event.preventDefault();
});
$("new").addEventListener("click", begin);
$("menu").addEventListener("click", () => side(!document.body.classList.contains("side")));
$("shade").addEventListener("click", () => side(false));
$("search").addEventListener("input", refresh);
$("export").addEventListener("click", () => download(store.exported(), "bitnet-conversations.json", "application/json"));
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", upload);
$("copy-chat").addEventListener("click", () => copy(transcript(shown)));
$("save-chat").addEventListener("click", () => download(transcript(shown), fileName(shown.title), "text/markdown"));
$("ideas").append(...IDEAS.map((idea) => make("button", { textContent: idea, on: { click: () => busy() || send(idea) } })));

answers.listen({ began, grew: (conversation, message) => conversation === shown && grow(message), ended });
store.listen(otherTab);
listenToServer(serverChanged, () => modelOf(shown)?.id);
prepareComposer({ send, stop: () => answers.stop(shown), busy, editLast });
prepareSettings(() => shown);
open(store.all()[0] ?? store.create());
check();
