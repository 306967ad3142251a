// Markdown of a model, which is hostile: it reaches the page only through DOMPurify.

import { colour } from "./code.js";
import { copy, make } from "./dom.js";
import { extensions, typeset } from "./math.js";
import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

const escaped = (text) => make("span", { textContent: text }).innerHTML;

const marked = new Marked({
  breaks: true,
  gfm: true,
  extensions,
  renderer: {
    checkbox: ({ checked }) => `<span class="task${checked ? " done" : ""}" role="img" aria-label="${checked ? "done" : "to do"}"></span> `,
    // An image would carry what the model writes to its server: its text is shown instead.
    image: ({ text, href }) => escaped(text || href),
  },
});

const CLEAN = {
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["style", "form", "input", "button", "textarea", "select", "img", "video", "audio", "picture", "source", "dialog"],
  FORBID_ATTR: ["style", "id", "name"],
  ALLOW_DATA_ATTR: false,
};
const CLASSES = /^(language-[\w+#-]{1,30}|math|wide|task|done)$/;

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

// Renders into `place`, one element a block; blocks that did not change since the last call stay as they are.
export function render(place, text) {
  const blocks = marked.lexer(text);
  const known = place.blocks ?? [];
  blocks.forEach((block, at) => {
    if (known[at] === block.raw) return;
    const element = make("div", {}, sanitized(block));
    decorate(element);
    if (place.children[at]) place.children[at].replaceWith(element);
    else place.append(element);
  });
  while (place.children.length > blocks.length) place.lastChild.remove();
  place.blocks = blocks.map((block) => block.raw);
}

function sanitized(block) {
  const found = DOMPurify.sanitize(marked.parser([block]), { ...CLEAN, RETURN_DOM_FRAGMENT: true });
  for (const element of found.querySelectorAll("[class]")) {
    element.className = [...element.classList].filter((name) => CLASSES.test(name)).join(" ");
  }
  return found;
}

function decorate(element) {
  element.querySelectorAll("pre").forEach(frame);
  element.querySelectorAll("table").forEach((table) => {
    const scroller = make("div", { className: "table", tabIndex: 0, label: "Table" });
    scroller.setAttribute("role", "region");
    table.replaceWith(scroller);
    scroller.append(table);
  });
  typeset(element);
}

// Put a block of code into a frame with its language and a button that copies it.
function frame(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const button = make("button", { textContent: "Copy" });
  button.addEventListener("click", async () => {
    await copy(code.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const box = make("div", { className: "code" }, make("div", { className: "bar" }, make("span", { textContent: language }), button));
  pre.replaceWith(box);
  pre.tabIndex = 0;
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  box.append(pre);
  colour(code, language);
}
