// A conversation: {id, title, changed, used, settings, messages, removed, leaf}. Its messages {id, parent, role, content,
// ...} form a tree, whose branches are other versions of a message. `leaf` is the last message of the branch that is
// shown, `removed` has the ids of deleted messages, which another tab may still have.

const newId = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("-");

const TITLE = 60; // characters

// The beginning of a first message, up to a word's end.
export function titleOf(text) {
  const line = text.trim().replace(/\s+/g, " ");
  const start = [...line].slice(0, TITLE).join("");
  if (start === line) return line;
  const words = start.slice(0, Math.max(0, start.lastIndexOf(" ")));
  return `${words.length > TITLE / 3 ? words : start}…`;
}

export const fresh = () => ({ id: newId(), title: "New chat", changed: Date.now(), settings: {}, messages: [], removed: [], leaf: null });

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

// Remove a message and all that follows it; another version of it is shown if there is one.
export function remove(conversation, message) {
  const gone = new Set([message.id]);
  for (const { id, parent } of conversation.messages) if (gone.has(parent)) gone.add(id);
  conversation.removed.push(...gone);
  conversation.messages = conversation.messages.filter(({ id }) => !gone.has(id));
  conversation.leaf = message.parent;
  const other = versions(conversation, message).at(-1);
  if (other) choose(conversation, other);
}

const size = ({ content, thoughts = "" }) => content.length + thoughts.length;

// Take in the messages that another tab has saved; of two states of a message the longer one is the later.
export function merge(mine, theirs) {
  const gone = new Set([...mine.removed, ...theirs.removed]);
  mine.removed = [...gone];
  mine.messages = mine.messages.filter(({ id }) => !gone.has(id));
  const known = new Map(mine.messages.map((message) => [message.id, message]));
  for (const message of theirs.messages) {
    const own = known.get(message.id);
    if (!own && !gone.has(message.id)) mine.messages.push(message);
    else if (own && size(message) >= size(own)) Object.assign(own, message);
  }
  const here = (leaf) => mine.messages.some(({ id }) => id === leaf);
  if (!here(mine.leaf)) mine.leaf = here(theirs.leaf) ? theirs.leaf : (mine.messages.at(-1)?.id ?? null);
}

// Show what another tab has added after the last message that is shown here.
export function follow(mine, theirs) {
  if (path(theirs).some(({ id }) => id === mine.leaf)) mine.leaf = theirs.leaf;
}

// A conversation from storage or a file, made whole: a message without its parent begins a branch. Null if it is not one.
export function parsed(value) {
  if (!isText(value?.id) || !isText(value.title) || !Array.isArray(value.messages)) return null;
  const linear = value.messages.every((message) => message?.id === undefined);
  const messages = [];
  const ids = new Set();
  for (const message of linear ? chained(value) : value.messages) {
    if (!isMessage(message) || ids.has(message.id)) continue;
    messages.push(ids.has(message.parent) ? message : { ...message, parent: null });
    ids.add(message.id);
  }
  const leaf = ids.has(value.leaf) ? value.leaf : (messages.at(-1)?.id ?? null);
  const [changed, used] = [value.changed, value.used].map((number) => Number(number) || 0);
  const removed = Array.isArray(value.removed) ? value.removed.filter(isText) : [];
  const plain = Object.entries(value.settings ?? {}).filter(([, one]) => ["string", "number"].includes(typeof one));
  return { id: value.id, title: value.title, changed, used, settings: Object.fromEntries(plain), messages, removed, leaf };
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
