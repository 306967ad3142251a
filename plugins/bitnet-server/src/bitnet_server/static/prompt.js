// The messages of a request: those of the branch that is shown, with a summary in place of the oldest if there is one.

import { fullText } from "./attachments.js";
import { chosen } from "./choices.js";
import { path } from "./conversation.js";

// The message after the turns that a summary replaces; the first message without one.
export const start = (messages) => Math.max(0, messages.findLastIndex(({ summary }) => summary));

export function promptOf(conversation) {
  const messages = path(conversation);
  const kept = messages.slice(start(messages)).filter(({ content, files }) => content || files?.length);
  return [...system(conversation, kept[0]?.summary), ...kept.map(turn)];
}

const turn = (message) => ({ role: message.role, content: fullText(message) });

function system(conversation, summary) {
  const parts = [String(chosen(conversation).system ?? "").trim(), summary && `The conversation so far, in short:\n${summary}`];
  const content = parts.filter(Boolean).join("\n\n");
  return content ? [{ role: "system", content }] : [];
}

// The question that comes nearest to the middle of what is sent; null if there is only one.
export function middle(conversation) {
  const messages = path(conversation);
  const turns = messages.slice(start(messages));
  const lengths = turns.map((message) => fullText(message).length);
  const half = lengths.reduce((sum, length) => sum + length, 0) / 2;
  let found = null;
  let nearest = Infinity;
  let before = 0;
  turns.forEach((message, at) => {
    if (at && message.role === "user" && Math.abs(before - half) < nearest) {
      found = message;
      nearest = Math.abs(before - half);
    }
    before += lengths[at];
  });
  return found;
}

// The request for a summary of the turns before a message.
export function summaryPrompt(conversation, end) {
  const messages = path(conversation);
  const turns = messages.slice(start(messages), messages.indexOf(end));
  const text = "Summarize our conversation so far in at most 150 words: facts, decisions, names, open questions.";
  return [...system(conversation, turns[0]?.summary), ...turns.map(turn), { role: "user", content: text }];
}
