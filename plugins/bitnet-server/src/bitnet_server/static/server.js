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

export const listen = (changed) => {
  listener = changed;
};

export async function check() {
  clearTimeout(timer);
  again = asking;
  if (asking) return;
  asking = true;
  try {
    const [props, list] = await Promise.all([properties(), models()]);
    Object.assign(server, { props, models: list, ...condition(props) });
  } catch (error) {
    Object.assign(server, trouble(error));
  }
  asking = false;
  listener();
  if (again) check();
  else if (document.visibilityState === "visible" && server.state !== "key") timer = setTimeout(check, pause());
}

const pause = () => (["ready", "busy"].includes(server.state) ? CALM : SOON);

function condition({ state, model, device, active_requests: active = 0, total_slots: slots }) {
  if (state === "draining") return { state, text: "the server is shutting down" };
  if (state && state !== "ready") return { state: "failed", text: `the server does not work: ${state}` };
  const text = `${model} · ${device}`;
  if (active <= slots) return { state: "ready", text };
  return { state: "busy", text: `${text} · busy, ${active - slots} waiting` };
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
