// Elements of the page.

export const $ = (id) => document.getElementById(id);

// An element with its properties, its listeners (on) and its children; `label` is its accessible name.
export function make(tag, { label, on = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  if (tag === "button") element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children);
  return element;
}

export function symbol(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function iconButton(icon, label, click) {
  return make("button", { className: "icon", label, title: label, on: { click } }, symbol(icon));
}

// Say something to users of screen readers.
export const announce = (text) => {
  $("status").textContent = text;
};

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce("Copied");
}

export function download(text, name, type) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href, download: name }).click();
  URL.revokeObjectURL(href);
}
