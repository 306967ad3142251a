// What is set for all chats and for one: sampling, system prompt, thinking, model, and what happens at a full context.

import { server } from "./server.js";
import { settings } from "./store.js";

// The numbers that a request may have: [{name, label, help, min, max, step}].
export const numbers = fetch("/static/options.json").then((response) => response.json());

// The settings of a conversation: its own before those of all.
export const chosen = (conversation) => ({ ...settings, ...conversation.settings });

// The fields of a request beside its messages.
export async function parameters(conversation) {
  const values = chosen(conversation);
  const body = {};
  for (const { name } of await numbers) if (Number.isFinite(values[name])) body[name] = values[name];
  const model = modelOf(conversation);
  if (model) body.model = model.id;
  if (values.full === "drop") body.truncation = "auto";
  if (values.thinking && canThink()) body.chat_template_kwargs = { enable_thinking: values.thinking === "on" };
  return body;
}

// Whether the model's chat template can switch thinking on and off.
export const canThink = () => Boolean(server.props?.chat_template?.includes("enable_thinking"));

// The model that answers a conversation: the chosen one if it is still there, else the first.
export function modelOf(conversation) {
  const { model } = chosen(conversation);
  return server.models.find(({ id }) => id === model) ?? server.models[0];
}

// The context of that model, in tokens; 0 while it is not known.
export const contextOf = (conversation) => modelOf(conversation)?.meta?.n_ctx ?? server.props?.n_ctx ?? 0;
