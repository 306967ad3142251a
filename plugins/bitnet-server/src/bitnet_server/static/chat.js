// One conversation on the page: its messages, the answer that comes in, and what can be done with both.

import { chat } from "./api.js";
import { copy, render } from "./markdown.js";
import { parameters } from "./settings.js";
import { save, settings } from "./store.js";

const $ = (id) => document.getElementById(id);

export class Chat {
  constructor(conversation, { changed, failed }) {
    this.conversation = conversation;
    this.changed = changed;
    this.failed = failed;
    this.abort = null;
  }

  get busy() {
    return this.abort !== null;
  }

  show() {
    const { messages } = this.conversation;
    $("log").replaceChildren(...messages.map((message, at) => this.element(message, at)));
    $("empty").hidden = messages.length > 0;
    $("scroll").scrollTop = $("scroll").scrollHeight;
  }

  send(text) {
    const { conversation } = this;
    if (!conversation.messages.length) conversation.title = text.trim().slice(0, 60);
    conversation.messages.push({ role: "user", content: text });
    return this.answer();
  }

  // Answer the last message, or go on with the answer that is there.
  async answer() {
    const { messages } = this.conversation;
    if (messages.at(-1).role === "user") messages.push({ role: "assistant", content: "" });
    const message = messages.at(-1);
    this.store();
    this.show();
    this.abort = new AbortController();
    this.changed();
    try {
      await this.read(message);
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error);
    }
    this.abort = null;
    if (!message.content) messages.pop();
    this.store();
    this.show();
    this.changed();
    $("status").textContent = message.content ? `Answer: ${message.content.slice(0, 600)}` : "";
    $("input").focus();
  }

  async read(message) {
    const sent = this.conversation.messages.map(({ role, content }) => ({ role, content }));
    if (!message.content) sent.pop();
    if (settings.system?.trim()) sent.unshift({ role: "system", content: settings.system });
    const place = $("log").lastChild.querySelector(".body");
    const body = { messages: sent, stream: true, stream_options: { include_usage: true }, ...(await parameters()) };
    const began = performance.now();
    let waiting = false;
    for await (const part of chat(body, this.abort.signal)) {
      const choice = part.choices[0];
      message.content += choice?.delta.content ?? "";
      if (choice?.delta.reasoning_content) message.thoughts = (message.thoughts ?? "") + choice.delta.reasoning_content;
      if (choice?.finish_reason) message.finish = choice.finish_reason;
      if (part.usage) this.tell(message, part, performance.now() - began);
      if (waiting || !message.content) continue;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        if (!place.isConnected) return;
        const bottom = $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 80;
        place.classList.remove("thinking");
        render(place, message.content);
        if (bottom) $("scroll").scrollTop = $("scroll").scrollHeight;
      });
    }
  }

  tell(message, { usage, timings }) {
    const speed = timings?.predicted_per_second;
    message.speed = speed ? `${usage.completion_tokens} tokens, ${speed.toFixed(1)} tokens/s` : "";
    this.conversation.used = usage.total_tokens;
  }

  stop() {
    this.abort?.abort();
  }

  store() {
    this.conversation.changed = Date.now();
    if (!save()) this.failed(new Error("The browser has no room left: export your conversations and delete some."));
  }

  element(message, at) {
    const element = document.createElement("article");
    const body = document.createElement("div");
    element.className = `message ${message.role}`;
    element.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
    body.className = "body";
    element.append(body);
    if (message.thoughts) element.prepend(thoughts(message.thoughts));
    if (message.role === "user") body.textContent = message.content;
    else if (message.content) render(body, message.content);
    else body.classList.add("thinking");
    if (message.content) element.append(this.tools(message, at, element));
    return element;
  }

  tools(message, at, element) {
    const row = document.createElement("div");
    row.className = "tools";
    const add = (icon, label, action) => {
      const button = document.createElement("button");
      button.className = "icon";
      button.type = "button";
      button.setAttribute("aria-label", label);
      button.title = label;
      button.append(symbol(icon));
      button.addEventListener("click", () => (this.busy && icon !== "copy" ? null : action(button)));
      row.append(button);
    };
    const last = at === this.conversation.messages.length - 1;
    add("copy", "Copy message", (button) => copy(message.content, button));
    if (message.role === "user") add("edit", "Edit and send again", () => this.edit(at, element));
    else {
      add("redo", "Write another answer", () => this.redo(at));
      if (last) add("more", "Continue this answer", () => this.answer());
      const note = document.createElement("span");
      note.textContent = [message.speed, message.finish === "length" ? "cut off at the limit" : ""].filter(Boolean).join(" · ");
      row.append(note);
    }
    return row;
  }

  redo(at) {
    this.conversation.messages.length = at;
    return this.answer();
  }

  edit(at, element) {
    const area = Object.assign(document.createElement("textarea"), { className: "edit", value: this.conversation.messages[at].content });
    const row = document.createElement("div");
    const cancel = Object.assign(document.createElement("button"), { textContent: "Cancel", type: "button" });
    const send = Object.assign(document.createElement("button"), { textContent: "Send", type: "button", className: "main" });
    area.setAttribute("aria-label", "Message");
    row.className = "row";
    row.append(cancel, send);
    element.replaceChildren(area, row);
    area.focus();
    cancel.addEventListener("click", () => this.show());
    send.addEventListener("click", () => {
      if (!area.value.trim()) return;
      this.conversation.messages.length = at;
      this.send(area.value);
    });
  }
}

function thoughts(text) {
  const box = document.createElement("details");
  box.append(Object.assign(document.createElement("summary"), { textContent: "Thoughts" }), text.trim());
  return box;
}

export function symbol(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}
