// A conversation as Markdown, for other programs.

import { fenced } from "./attachments.js";
import { path } from "./conversation.js";

const NAMES = { user: "You", assistant: "Answer" };

export function transcript(conversation) {
  const parts = path(conversation).map(({ role, content, files = [] }) => [`## ${NAMES[role]}`, ...files.map(fenced), content]);
  return [`# ${conversation.title.replace(/\s+/g, " ")}`, ...parts.flat()].filter(Boolean).join("\n\n") + "\n";
}

export const fileName = (title) => `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "chat"}.md`;
