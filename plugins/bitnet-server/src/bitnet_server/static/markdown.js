// Markdown of a model, which is hostile: it reaches the page only through DOMPurify.

import { marked } from "./marked.js";
import DOMPurify from "./purify.js";

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});

const clean = { USE_PROFILES: { html: true }, FORBID_TAGS: ["style", "form", "input", "button", "textarea", "select"], FORBID_ATTR: ["style", "id", "name"] };

// Renders into `place`, one element a block; blocks that did not change since the last call stay as they are.
export function render(place, text) {
  const blocks = marked.lexer(text);
  const known = place.blocks ?? [];
  blocks.forEach((block, at) => {
    if (known[at] === block.raw) return;
    const element = document.createElement("div");
    element.append(DOMPurify.sanitize(marked.parser([block]), { ...clean, RETURN_DOM_FRAGMENT: true }));
    element.querySelectorAll("pre").forEach(addCopy);
    if (place.children[at]) place.children[at].replaceWith(element);
    else place.append(element);
  });
  while (place.children.length > blocks.length) place.lastChild.remove();
  place.blocks = blocks.map((block) => block.raw);
}

function addCopy(pre) {
  const frame = document.createElement("div");
  const button = document.createElement("button");
  frame.className = "code";
  button.textContent = "Copy";
  button.addEventListener("click", () => copy(pre.textContent, button));
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  frame.append(pre, button);
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.classList.add("done");
  document.getElementById("status").textContent = "Copied";
}
