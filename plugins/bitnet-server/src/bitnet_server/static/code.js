// Colours of code: highlight.js, with languages that are loaded when an answer has code in them.

import { make } from "./dom.js";
import hljs from "./vendor/highlight.js";
import DOMPurify from "./vendor/purify.js";

const LONGEST = 50_000; // characters

// Languages and what people call them before their files have come.
const NAMES = {
  bash: "sh shell zsh console terminal", c: "h", cpp: "c++ cc hpp cxx", csharp: "cs c#", css: "scss less", diff: "patch",
  go: "golang", ini: "toml cfg conf", java: "", javascript: "js jsx mjs cjs node", json: "jsonc json5 jsonl", kotlin: "kt kts",
  lua: "", makefile: "make mk", markdown: "md", php: "", python: "py python3 pycon ipython", ruby: "rb", rust: "rs",
  sql: "sqlite postgresql mysql", typescript: "ts tsx", xml: "html svg xhtml vue", yaml: "yml",
};
const LANGUAGES = new Map(Object.entries(NAMES).flatMap(([name, others]) => [name, ...others.split(" ")].map((one) => [one, name])));

const coming = new Map(); // language -> promise of its grammar

// Colour the text of a code element of a language, now or when its grammar has come.
export function colour(code, called) {
  const language = LANGUAGES.get(called.toLowerCase());
  if (!language || code.textContent.length > LONGEST) return;
  if (hljs.getLanguage(language)) paint(code, language);
  else load(language).then(() => paint(code, language), () => {});
}

function load(language) {
  if (!coming.has(language)) {
    const grammar = import(`./vendor/languages/${language}.js`);
    coming.set(language, grammar.then((found) => hljs.registerLanguage(language, found.default)));
  }
  return coming.get(language);
}

function paint(code, language) {
  const html = hljs.highlight(code.textContent, { language, ignoreIllegals: true }).value;
  const allowed = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };
  code.replaceChildren(DOMPurify.sanitize(html, { ...allowed, RETURN_DOM_FRAGMENT: true }));
}
