// The messages of the conversation that is shown, and the answer that comes in.

import { underway } from "./answers.js";
import { path } from "./conversation.js";
import { $ } from "./dom.js";
import { editor, fill, messageElement } from "./message.js";

const NEAR = 80; // pixels from the end within which the page follows an answer
const CHEAP = 8; // milliseconds that drawing may take in every frame
const SHARE = 4; // else the pause after it, in times of what it took

let drawing = false;
let following = true; // the end is shown, and stays so

const atEnd = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < NEAR;

function toEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
  following = true;
}

export function showLog(conversation, actions, { follow = true } = {}) {
  const messages = path(conversation);
  const busy = Boolean(underway(conversation)?.message);
  const elements = messages.map((message) => messageElement(message, conversation, { last: message === messages.at(-1), busy, actions }));
  const top = $("scroll").scrollTop;
  const stay = following;
  $("log").replaceChildren(...elements);
  $("empty").hidden = messages.length > 0;
  if (follow || stay) toEnd();
  else $("scroll").scrollTop = top;
  showDown();
}

// Draw what has come of an answer, once a frame; a long one less often, as drawing takes time from the model.
export function grow(message) {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    const began = performance.now();
    draw(message);
    const took = performance.now() - began;
    setTimeout(() => (drawing = false), took > CHEAP ? SHARE * took : 0);
  });
}

function draw(message) {
  const element = $("log").lastChild;
  if (element?.message !== message) return; // another conversation is shown now
  fill(element, message, true);
  if (following) toEnd();
  showDown();
}

export function editIn(element, message, done) {
  const [area, row] = editor(message, done);
  element.querySelector(".body")?.remove();
  element.querySelector(".tools").replaceWith(area, row);
  element.classList.add("editing");
  area.focus();
}

function showDown() {
  $("down").hidden = $("empty").hidden ? atEnd() : true;
}

function scrolled() {
  following = atEnd();
  showDown();
}

// A notice or a longer message makes the part that scrolls smaller.
new ResizeObserver(() => {
  if (following) toEnd();
  showDown();
}).observe($("scroll"));
$("scroll").addEventListener("scroll", scrolled, { passive: true });
$("down").addEventListener("click", toEnd);
