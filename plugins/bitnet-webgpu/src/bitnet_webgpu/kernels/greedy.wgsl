// A workgroup's best token, and the advance of a row to its next position.

const NONE = 0xffffffffu;

var<workgroup> best_key: array<u32, GROUP>;
var<workgroup> best_token: array<u32, GROUP>;

fn better(key: u32, token: u32, other_key: u32, other_token: u32) -> bool {
    return key > other_key || (key == other_key && token < other_token);
}

fn best_of_group(key: u32, token: u32, thread: u32) { // stores the result in element 0
    best_key[thread] = key;
    best_token[thread] = token;
    workgroupBarrier();
    for (var half = GROUP / 2u; half > 0u; half >>= 1u) {
        if (thread < half && better(best_key[thread + half], best_token[thread + half], best_key[thread], best_token[thread])) {
            best_key[thread] = best_key[thread + half];
            best_token[thread] = best_token[thread + half];
        }
        workgroupBarrier();
    }
}

fn advance(row: u32, key: u32, found: u32) { // key 0: no token is allowed; key of NaN: the token is -1
    let at = row * (p.ring + 1u);
    var token = i32(found);
    if (key == 0u || key == 0xffffffffu) { token = -1; }
    history[at] += 1;
    if (history[at] > 0 && u32(history[at]) <= p.ring) { history[at + u32(history[at])] = token; }
    let position = step[row].y + 1;
    let block = u32(position) / 64u;
    var slot = -1;
    if (token >= 0 && block < p.max_blocks) {
        let entry = tables[u32(step[row].w) * p.max_blocks + block];
        if (entry >= 0) { slot = entry * 64 + position % 64; }
    }
    step[row] = vec4<i32>(token, select(position, -1, slot < 0), slot, step[row].w);
}
