// The state of the server, asked for again and again while the page is visible.

import { models, properties } from "./api.js";

// state: connecting, ready, busy, loading, draining, failed, key or unreachable; text: the state in words.
export const server = { state: "connecting", text: "connecting…", props: null, models: [] };

const CALM = 10_000; // milliseconds between two questions
const SOON = 1_000;

let timer = 0;
let asking = false;
let again = false;
let listener = () => {};
let chosen = () => undefined;

// Call `changed` after each answer; `model` returns the name of the model that is of interest.
export function listen(changed, model) {
  listener = changed;
  chosen = model;
}

export async function check() {
  clearTimeout(timer);
  again = asking;
  if (asking) return;
  asking = true;
  try {
    server.models = await models();
    const props = await properties(server.models.length > 1 ? chosen() : undefined);
    Object.assign(server, { props, ...condition(props) });
  } catch (error) {
    Object.assign(server, trouble(error));
  }
  asking = false;
  listener();
  if (again) check();
  else if (document.visibilityState === "visible" && server.state !== "key") timer = setTimeout(check, pause());
}

const pause = () => (["ready", "busy"].includes(server.state) ? CALM : SOON);

function condition({ health = "ready", state, model, device, active_requests: active = 0, total_slots: slots = 0 }) {
  if (health === "draining") return { state: "draining", text: "the server is shutting down" };
  if (health !== "ready") return { state: "failed", text: `the server does not work: ${health}` };
  const name = server.models.length > 1 ? "" : `${model} · `; // of several, the menu has the names
  if (state === "loading") return { state: "loading", text: `${name}loading…` };
  if (state === "unloaded") return { state: "ready", text: `${name}loads with the first message` };
  const text = `${name}${device}`;
  return active > slots ? { state: "busy", text: `${text} · busy, ${active - slots} waiting` } : { state: "ready", text };
}

function trouble({ status, message }) {
  if (status === 401) return { state: "key", text: "an API key is needed" };
  if (status === 503 && message.startsWith("loading")) return { state: "loading", text: "loading the model…" };
  return status === 0 ? { state: "unreachable", text: "the server cannot be reached" } : { state: "failed", text: message };
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") check();
});
addEventListener("online", check);
addEventListener("offline", check);
