// A conversation: {id, title, changed, settings, messages, leaf}. Its messages {id, parent, role, content, ...} form a
// tree, whose branches are other versions of a message. `leaf` is the last message of the branch that is shown.

const newId = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("-");

export const fresh = () => ({ id: newId(), title: "New chat", changed: Date.now(), settings: {}, messages: [], leaf: null });

// The messages of the branch that is shown, the first one first.
export function path({ messages, leaf }) {
  const known = new Map(messages.map((message) => [message.id, message]));
  const found = [];
  for (let at = known.get(leaf); at; at = known.get(at.parent)) found.unshift(at);
  return found;
}

// All versions of a message, the oldest first.
export const versions = ({ messages }, { parent }) => messages.filter((other) => other.parent === parent);

// Append a message to the branch that is shown.
export function add(conversation, message) {
  const made = { id: newId(), parent: conversation.leaf, ...message };
  conversation.messages.push(made);
  conversation.leaf = made.id;
  return made;
}

// Go back to before a message: what is added next is another version of it.
export function before(conversation, message) {
  conversation.leaf = message.parent;
}

// Show the branch of a message, down to its newest answer.
export function choose(conversation, message) {
  const newest = ({ id }) => conversation.messages.findLast(({ parent }) => parent === id);
  let leaf = message;
  while (newest(leaf)) leaf = newest(leaf);
  conversation.leaf = leaf.id;
}

// Remove a message that has no answer.
export function drop(conversation, message) {
  conversation.messages = conversation.messages.filter((other) => other !== message);
  if (conversation.leaf === message.id) conversation.leaf = message.parent;
}

// Take in the messages that another tab has saved; of two states of a message the longer one is the later.
export function merge(mine, theirs) {
  const known = new Map(mine.messages.map((message) => [message.id, message]));
  for (const message of theirs.messages) {
    const own = known.get(message.id);
    if (!own) mine.messages.push(message);
    else if (message.content.length > own.content.length) Object.assign(own, message);
  }
}

// Show what another tab has added after the last message that is shown here.
export function follow(mine, theirs) {
  if (mine.leaf === null || path(theirs).some(({ id }) => id === mine.leaf)) mine.leaf = theirs.leaf;
}

// A conversation from a file or another version of the page, made whole; null if it is not one.
export function parsed(value) {
  const one = value && !Array.isArray(value.messages) ? null : value;
  if (!one || !isText(one.id) || !isText(one.title)) return null;
  const linear = one.messages.length > 0 && one.messages.every((message) => message?.id === undefined);
  const messages = linear ? chained(one) : one.messages;
  const ids = new Set();
  for (const message of messages) {
    if (!isMessage(message) || ids.has(message.id) || !(message.parent === null || ids.has(message.parent))) return null;
    ids.add(message.id);
  }
  const leaf = ids.has(one.leaf) ? one.leaf : (messages.at(-1)?.id ?? null);
  const plain = Object.entries(one.settings ?? {}).filter(([, value]) => ["string", "number"].includes(typeof value));
  const [changed, used] = [one.changed, one.used].map((value) => Number(value) || 0);
  return { id: one.id, title: one.title, changed, used, settings: Object.fromEntries(plain), messages, leaf };
}

const isText = (value) => typeof value === "string";

const isFile = (file) => isText(file?.name) && isText(file.text);

function isMessage(message) {
  const files = message?.files ?? [];
  const texts = [message?.thoughts, message?.summary, message?.speed];
  return ["user", "assistant"].includes(message?.role) && isText(message.id) && isText(message.content) &&
    Array.isArray(files) && files.every(isFile) && texts.every((text) => text === undefined || isText(text)) &&
    ["undefined", "number"].includes(typeof message.thought);
}

// The messages of a conversation without branches, as the page stored them before.
function chained({ id, messages }) {
  return messages.map((message, at) => ({ ...message, id: `${id}-${at}`, parent: at ? `${id}-${at - 1}` : null }));
}
