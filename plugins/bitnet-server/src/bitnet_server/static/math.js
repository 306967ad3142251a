// Formulas: LaTeX between $ $, $$ $$, \( \) or \[ \] as MathML, which the browser lays out without fonts of its own.

import { make } from "./dom.js";
import DOMPurify from "./vendor/purify.js";

const LONGEST = 5000; // characters
const KEPT = 500;

const INLINE = [
  /^\\\((.+?)\\\)/s,
  /^\\\[(.+?)\\\]/s,
  /^\$\$(.+?)\$\$/s,
  /^\$(?![\s$])((?:\\.|[^\\$\n])+?)(?<![\s\\])\$(?!\d)/, // not the dollars of "from $5 to $6"
];
const BLOCK = [/^ {0,3}\$\$(.+?)\$\$[ \t]*(?:\n|$)/s, /^ {0,3}\\\[(.+?)\\\][ \t]*(?:\n|$)/s];

const matched = (rules, source) => rules.map((rule) => rule.exec(source)).find((found) => found && found[1].length < LONGEST);

function tokenizer(type, rules) {
  return (source) => {
    const found = matched(rules, source);
    if (!found || found[1].includes("\n\n")) return undefined;
    return { type, raw: found[0], tex: found[1].trim(), wide: /^ *(\$\$|\\\[)/.test(found[0]) };
  };
}

const escaped = (text) => make("span", { textContent: text }).innerHTML;
const renderer = ({ tex, wide }) => `<span class="${wide ? "math wide" : "math"}">${escaped(tex)}</span>`;

// Extensions of marked; what they write is typeset later.
export const extensions = [
  {
    name: "formula",
    level: "block",
    start: (source) => source.match(/\n {0,3}(\$\$|\\\[)/)?.index,
    tokenizer: tokenizer("formula", BLOCK),
    renderer,
  },
  {
    name: "math",
    level: "inline",
    start: (source) => source.match(/\$|\\[([]/)?.index,
    tokenizer: tokenizer("math", INLINE),
    renderer,
  },
];

// Temml sets styles one property at a time, such as a cell's padding; a formula cannot write a style of its own.
const CLEAN = { USE_PROFILES: { mathMl: true }, ADD_TAGS: ["span"], ADD_ATTR: ["class", "style", "form"], FORBID_ATTR: ["href", "id"] };

let temml = null;
let coming = null;
const known = new Map(); // formula -> element, as each frame of a stream shows the same ones again

// Typeset the formulas of an element, now or when the library has come.
export function typeset(element) {
  const formulas = element.querySelectorAll("span.math");
  if (!formulas.length) return;
  if (temml) formulas.forEach(show);
  else load().then(() => formulas.forEach(show), () => {});
}

// The library is a plain script, kept as it was published.
function load() {
  coming ??= new Promise((resolve, reject) => {
    const done = () => resolve((temml = window.temml));
    document.head.append(make("script", { src: "/static/vendor/temml.js", on: { load: done, error: reject } }));
  });
  return coming;
}

function show(place) {
  const wide = place.classList.contains("wide");
  const name = `${wide}${place.textContent}`;
  if (!known.has(name)) {
    if (known.size >= KEPT) known.clear();
    known.set(name, formula(place.textContent, wide));
  }
  place.replaceWith(known.get(name).cloneNode(true));
}

function formula(tex, displayMode) {
  const place = make("span", { className: displayMode ? "formula wide" : "formula" });
  try {
    temml.render(tex, place, { displayMode, throwOnError: true, maxExpand: 200, maxSize: [50, 500] });
  } catch {
    place.append(make("code", { textContent: tex }));
    return place;
  }
  DOMPurify.sanitize(place, { ...CLEAN, IN_PLACE: true });
  if (displayMode) place.tabIndex = 0; // it can be wider than the page
  return place;
}
