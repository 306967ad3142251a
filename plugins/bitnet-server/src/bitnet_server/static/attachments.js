// Text files that are sent with a message: reading them, their place in the prompt, and folded blocks that show them.

import { make } from "./dom.js";

const MOST = 8;
const BYTES = 256 * 1024;

// {name, text} of each file, and why the others are refused.
export async function readFiles(files, present) {
  const found = [];
  const refused = [];
  for (const file of files) {
    try {
      if (present + found.length >= MOST) throw new Error(`a message takes ${MOST} files at most`);
      found.push({ name: file.name, text: await readText(file) });
    } catch (error) {
      refused.push(`${file.name}: ${error.message}`);
    }
  }
  return { found, refused };
}

async function readText(file) {
  if (file.size > BYTES) throw new Error(`${size(file.size)} are more than the ${size(BYTES)} that a file may have`);
  const bytes = await file.arrayBuffer().catch(() => null);
  if (bytes === null) throw new Error("it cannot be read");
  if (new Uint8Array(bytes).includes(0)) throw new Error("it is not a text file");
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("it is not a text file in UTF-8");
  }
}

const size = (bytes) => (bytes < 1024 ? `${bytes} bytes` : `${(bytes / 1024).toFixed(bytes < 10240 ? 1 : 0)} KiB`);

// The content of a message as the model gets it: files as fenced blocks before the text.
export function fullText({ content, files = [] }) {
  return [...files.map(fenced), content].filter(Boolean).join("\n\n");
}

export function fenced({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

export function block({ name, text }) {
  const lines = text.replace(/\n$/, "").split("\n").length;
  const note = ` ${size(new Blob([text]).size)}, ${lines} ${lines === 1 ? "line" : "lines"}`;
  const summary = make("summary", {}, name, make("small", { textContent: note }));
  const content = make("pre", { textContent: text, tabIndex: 0, label: name });
  content.setAttribute("role", "region");
  return make("details", { className: "file" }, summary, content);
}
