// Conversations and settings in local storage. Each conversation has a key of its own, so that tabs do not overwrite
// each other's; what other tabs write arrives as storage events.

import { follow, fresh, merge, parsed } from "./conversation.js";

const PREFIX = "bitnet.chat.";
const SETTINGS = "bitnet.settings";
const OLD = "bitnet.conversations"; // one list of all, until version 0.2

const conversations = new Map();
export const settings = {};
let listener = () => {};

// Call `changed(id)` when another tab has changed or deleted a conversation, `changed(null)` after other changes.
export const listen = (changed) => {
  listener = changed;
};

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

// False if the browser has no room left.
function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const saveSettings = () => write(SETTINGS, settings);
export const all = () => [...conversations.values()].sort((a, b) => b.changed - a.changed);
export const find = (id) => conversations.get(id);

export function create() {
  const made = fresh();
  conversations.set(made.id, made);
  return made;
}

// Write a conversation beside what other tabs have written to it. False if the browser has no room left. One that was
// deleted meanwhile, here or in another tab, stays deleted.
export function save(conversation) {
  if (!conversations.has(conversation.id)) return true;
  const stored = parsed(read(PREFIX + conversation.id));
  if (stored) merge(conversation, stored);
  conversation.changed = Date.now();
  return put(conversation);
}

function put(conversation) {
  const messages = conversation.messages.filter(({ role, content, thoughts }) => role === "user" || content || thoughts);
  return write(PREFIX + conversation.id, { ...conversation, messages });
}

export function remove(id) {
  conversations.delete(id);
  localStorage.removeItem(PREFIX + id);
}

function load() {
  conversations.clear();
  for (const name of Object.keys(localStorage)) {
    const found = name.startsWith(PREFIX) ? parsed(read(name)) : null;
    if (found) conversations.set(found.id, found);
  }
  adopt();
  loadSettings();
}

// Give each conversation of the old list a key of its own; one leaves the list only when it has been written.
function adopt() {
  let old = read(OLD);
  while (Array.isArray(old) && old.length) {
    const [first, ...others] = old;
    const found = parsed(first);
    if (found) conversations.set(found.id, found);
    if (found && !put(found)) return;
    old = others;
    write(OLD, old);
  }
  localStorage.removeItem(OLD);
}

function loadSettings() {
  for (const name of Object.keys(settings)) delete settings[name];
  Object.assign(settings, read(SETTINGS));
}

addEventListener("storage", ({ key }) => {
  if (key === SETTINGS) loadSettings();
  else if (key === null) load();
  if (!key?.startsWith(PREFIX)) return listener(null);
  const id = key.slice(PREFIX.length);
  const theirs = parsed(read(key));
  const mine = conversations.get(id);
  if (!theirs) conversations.delete(id);
  else if (!mine) conversations.set(id, theirs);
  else {
    merge(mine, theirs);
    follow(mine, theirs);
    Object.assign(mine, { title: theirs.title, changed: theirs.changed, settings: theirs.settings });
  }
  listener(id);
});

export const exported = () => JSON.stringify({ version: 2, conversations: all().filter((one) => one.messages.length) }, null, 1);

// The number of conversations taken in. Throws if the text is not an export.
export function imported(text) {
  const found = JSON.parse(text).conversations?.map(parsed);
  if (!found || found.includes(null)) throw new Error("no conversations");
  const unknown = found.filter(({ id }) => !conversations.has(id));
  for (const one of unknown) {
    conversations.set(one.id, one);
    if (!put(one)) throw new Error("no room");
  }
  return unknown.length;
}

load();
