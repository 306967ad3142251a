// Byte-level BPE from a tokenizer.json.

function byteAlphabet() { // GPT-2's printable character of each byte
  const plain = [];
  for (const [first, last] of [[33, 126], [161, 172], [174, 255]]) for (let b = first; b <= last; b++) plain.push(b);
  const characters = new Array(256);
  for (const b of plain) characters[b] = String.fromCharCode(b);
  let next = 256;
  for (let b = 0; b < 256; b++) if (characters[b] === undefined) characters[b] = String.fromCharCode(next++);
  return characters;
}

// JavaScript spells the case-insensitive group of the contractions out.
const portable = (pattern) => pattern.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)",
  "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])");

export class Tokenizer {
  constructor(document) {
    const { model, pre_tokenizer: rules, added_tokens: added } = document;
    this.ids = new Map(Object.entries(model.vocab));
    this.texts = [];
    for (const [text, id] of this.ids) this.texts[id] = text;
    this.special = new Set(added.filter((token) => token.special).map((token) => token.id));
    this.ranks = new Map(model.merges.map((pair, rank) => [pair.join(' '), rank]));
    this.whole = model.ignore_merges;
    this.pieces = new RegExp(portable(rules.pretokenizers[0].pattern.Regex), 'gu');
    this.characters = byteAlphabet();
    this.bytes = new Map(this.characters.map((character, byte) => [character, byte]));
  }

  encode(text) {
    const ids = [];
    for (const [piece] of text.matchAll(this.pieces)) {
      const spelled = [...new TextEncoder().encode(piece)].map((byte) => this.characters[byte]);
      const word = spelled.join('');
      if (this.whole && this.ids.has(word)) ids.push(this.ids.get(word));
      else ids.push(...this.merge(spelled).map((part) => this.ids.get(part)));
    }
    return ids;
  }

  merge(parts) {
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`);
        if (rank !== undefined && rank < best) { best = rank; at = i; }
      }
      if (at < 0) return parts;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  decode(ids) {
    const bytes = [];
    for (const id of ids) {
      if (this.special.has(id) || this.texts[id] === undefined) continue;
      for (const character of this.texts[id]) bytes.push(this.bytes.get(character));
    }
    return new TextDecoder().decode(new Uint8Array(bytes));
  }
}
