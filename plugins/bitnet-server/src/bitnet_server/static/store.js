// Conversations and settings in local storage. A conversation: {id, title, changed, messages: [{role, content}]}.

const read = (name, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
};

export const settings = read("bitnet.settings", {});
let conversations = read("bitnet.conversations", []).filter(valid);

function valid(one) {
  const text = (value) => typeof value === "string";
  return one && text(one.id) && text(one.title) && Array.isArray(one.messages) &&
    one.messages.every((message) => ["user", "assistant"].includes(message?.role) && text(message.content));
}

// False where the browser has no room left.
function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const saveSettings = () => write("bitnet.settings", settings);
export const save = () => write("bitnet.conversations", conversations);
export const all = () => [...conversations].sort((a, b) => b.changed - a.changed);
export const find = (id) => conversations.find((one) => one.id === id);

export function create() {
  const made = { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "New chat", changed: Date.now(), messages: [] };
  conversations.push(made);
  return made;
}

export function remove(id) {
  conversations = conversations.filter((one) => one.id !== id);
  return save();
}

export const exported = () => JSON.stringify({ version: 1, conversations }, null, 1);

// How many were taken in; throws where the text is no export.
export function imported(text) {
  const found = JSON.parse(text).conversations?.filter(valid);
  if (!found) throw new Error("no conversations");
  const known = new Set(conversations.map((one) => one.id));
  const fresh = found.filter((one) => !known.has(one.id)).map(({ id, title, changed, messages }) =>
    ({ id, title, changed: Number(changed) || 0, messages }));
  conversations.push(...fresh);
  if (!save()) throw new Error("no room");
  return fresh.length;
}
