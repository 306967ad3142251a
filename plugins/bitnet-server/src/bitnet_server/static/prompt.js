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
  const parts = [chosen(conversation).system?.trim(), summary && `The conversation so far, in short:\n${summary}`];
  const content = parts.filter(Boolean).join("\n\n");
  return content ? [{ role: "system", content }] : [];
}

// The message before which the older half of the text ends, null if there is only one turn.
export function middle(conversation) {
  const messages = path(conversation);
  const turns = messages.slice(start(messages));
  const half = turns.reduce((sum, message) => sum + fullText(message).length, 0) / 2;
  const last = turns.findLast(({ role }) => role === "user");
  let length = 0;
  for (const message of turns) {
    if (message === last || (message.role === "user" && length >= half)) return message === turns[0] ? null : message;
    length += fullText(message).length;
  }
  return null;
}

// The request for a summary of the turns before a message.
export function summaryPrompt(conversation, end) {
  const messages = path(conversation);
  const turns = messages.slice(start(messages), messages.indexOf(end));
  const text = "Summarize our conversation so far in at most 150 words: facts, decisions, names, open questions.";
  return [...system(conversation, turns[0]?.summary), ...turns.map(turn), { role: "user", content: text }];
}
