// Where messages are written: the text, the files that go with it, and the button that sends or stops.

import { readFiles } from "./attachments.js";
import { $, iconButton, make } from "./dom.js";
import { notice } from "./notice.js";

let files = [];

// actions: {send(text, files), stop(), busy(), editLast()}.
export function prepareComposer(actions) {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (actions.busy()) actions.stop();
    else submit(actions);
  });
  $("input").addEventListener("input", fit);
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!actions.busy()) submit(actions);
    } else if (event.key === "ArrowUp" && !$("input").value && !files.length) {
      event.preventDefault();
      actions.editLast();
    }
  });
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", async () => {
    await attach($("files").files);
    $("files").value = "";
  });
  prepareDrop();
}

function submit({ send }) {
  const text = $("input").value;
  if (!text.trim() && !files.length) return;
  const sent = files;
  files = [];
  $("input").value = "";
  fit();
  showFiles();
  send(text, sent);
}

function fit() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight + 2}px`;
}

export function showBusy(busy) {
  $("send").setAttribute("aria-label", busy ? "Stop" : "Send");
  $("send").title = busy ? "Stop (Esc)" : "Send (Enter)";
  $("send").querySelector("use").setAttribute("href", busy ? "#i-stop" : "#i-send");
}

async function attach(given) {
  const { found, refused } = await readFiles(given, files.length);
  files.push(...found);
  showFiles();
  if (refused.length) notice(`Not attached: ${refused.join("; ")}.`);
  $("input").focus();
}

function showFiles() {
  $("attached").replaceChildren(...files.map((file) => {
    const remove = iconButton("close", `Remove ${file.name}`, () => {
      files = files.filter((other) => other !== file);
      showFiles();
      $("input").focus();
    });
    return make("li", {}, make("span", { textContent: file.name }), remove);
  }));
}

function prepareDrop() {
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  let inside = 0;
  const mark = () => document.body.classList.toggle("dropping", inside > 0);
  addEventListener("dragenter", (event) => {
    if (carriesFiles(event)) inside += 1;
    mark();
  });
  addEventListener("dragleave", (event) => {
    if (carriesFiles(event)) inside -= 1;
    mark();
  });
  addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    inside = 0;
    mark();
    if (!carriesFiles(event)) return;
    event.preventDefault();
    attach([...event.dataTransfer.files]);
  });
  $("input").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  });
}
