// Answers under way: one a conversation, also of conversations that are not shown.

import { chat } from "./api.js";
import { canThink, parameters } from "./choices.js";
import { add, path, remove } from "./conversation.js";
import { promptOf, summaryPrompt } from "./prompt.js";
import { save } from "./store.js";

const EVERY = 2000; // milliseconds between two writes to the browser's storage
const SUMMARY = 300; // most tokens of a summary

const running = new Map(); // conversation's id -> {abort, conversation, message}
let listeners = { began() {}, grew() {}, ended() {} };

export const listen = (found) => {
  listeners = found;
};
export const underway = (conversation) => running.get(conversation.id);
export const stop = (conversation) => running.get(conversation.id)?.abort.abort();

// Answer the last message, or go on with the answer that is there.
export async function answer(conversation) {
  if (underway(conversation)) return;
  const last = path(conversation).at(-1);
  const asked = last.role === "user" || !last.content;
  const message = last.role === "user" ? add(conversation, { role: "assistant", content: "" }) : last;
  if (asked) delete message.thoughts;
  const abort = new AbortController();
  running.set(conversation.id, { abort, conversation, message });
  const kept = save(conversation);
  listeners.began(conversation);
  let failure = null;
  try {
    await read(conversation, message, abort.signal);
  } catch (error) {
    if (error.name !== "AbortError") failure = error;
  }
  running.delete(conversation.id);
  if (!message.content && !message.thoughts) remove(conversation, message);
  if (!save(conversation) || !kept) failure ??= new Error("The browser has no room left: export your conversations and delete some.");
  listeners.ended(conversation, message, failure);
}

async function read(conversation, message, signal) {
  const body = { messages: promptOf(conversation), ...(await parameters(conversation)) };
  const began = performance.now();
  let saved = began;
  delete message.finish;
  for await (const part of chat(body, signal)) {
    take(message, part, began);
    if (part.usage) conversation.used = part.usage.total_tokens;
    listeners.grew(conversation, message);
    if (performance.now() - saved > EVERY) {
      saved = performance.now();
      save(conversation);
    }
  }
}

function take(message, { choices: [choice], usage, timings }, began) {
  const { content = "", reasoning_content: thoughts } = choice?.delta ?? {};
  if (thoughts) {
    message.thoughts = (message.thoughts ?? "") + thoughts;
    message.thought = (performance.now() - began) / 1000;
  }
  message.content += content ?? "";
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  const speed = timings?.predicted_per_second;
  if (usage) message.speed = speed ? `${usage.completion_tokens} tokens, ${speed.toFixed(1)} tokens/s` : "";
}

// Put a summary in place of all turns before a message.
export async function summarize(conversation, end) {
  const abort = new AbortController();
  running.set(conversation.id, { abort, conversation, message: null });
  listeners.began(conversation);
  try {
    const body = { ...(await parameters(conversation)), max_tokens: SUMMARY, truncation: "auto" };
    if (canThink()) body.chat_template_kwargs = { enable_thinking: false };
    let text = "";
    for await (const part of chat({ ...body, messages: summaryPrompt(conversation, end) }, abort.signal)) {
      text += part.choices[0]?.delta.content ?? "";
    }
    if (!text.trim()) throw new Error("The model wrote no summary.");
    end.summary = text.trim();
  } finally {
    running.delete(conversation.id);
    listeners.began(conversation);
  }
  save(conversation);
}

// What has come of an answer stays when the page is left.
addEventListener("pagehide", () => running.forEach(({ conversation }) => save(conversation)));
