// A conversation that is longer than the model's context: leave out its oldest turns, summarize them, or start anew.

import { summarize } from "./answers.js";
import { chosen, contextOf } from "./choices.js";
import { hint, notice } from "./notice.js";
import { middle } from "./prompt.js";

// actions: {retry(), editLast(), anew(), failed(error)}.
export function offerRoom(conversation, actions) {
  const tokens = `${contextOf(conversation).toLocaleString()} tokens`;
  const end = middle(conversation);
  if (!end || chosen(conversation).full === "drop") {
    const text = `The last message alone does not fit into the model's context of ${tokens}.`;
    notice(text, ["Edit the message", actions.editLast], ["Start a new chat", actions.begin]);
    return;
  }
  const drop = () => {
    conversation.settings.full = "drop";
    actions.retry();
  };
  hint(
    `This chat fills the model's context of ${tokens}.`,
    ["Leave out the oldest turns", drop],
    ["Summarize them", () => condense(conversation, end, actions)],
    ["Start a new chat with the last message", actions.anew],
  );
}

async function condense(conversation, end, { retry, failed }) {
  hint("Summarizing the older turns…");
  try {
    await summarize(conversation, end);
  } catch (error) {
    notice("");
    if (error.name !== "AbortError") failed(error);
    return;
  }
  notice("");
  retry();
}
