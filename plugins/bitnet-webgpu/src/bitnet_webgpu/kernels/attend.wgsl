// Attention of TILE_N query heads, in `queries`, that share a key/value head, over positions begin..end - 1 of a sequence,
// 16 at a time: eight threads take a position's scores, then PAIRS threads (several times, if there are more) the values.
// key_word(row, i, p) and value_word(row, i, p) give words of the cache row that starts at `row`, of position p.

const CHUNK = 16u;
const SLICES = max(1u, GROUP / PAIRS); // of a chunk's positions
const LOW = -3.0e38;

var<workgroup> queries: array<vec2<f32>, TILE_N * PAIRS>;
var<workgroup> parts: array<f32, TILE_N * 128u>; // [head][position][eighth]
var<workgroup> weights: array<f32, TILE_N * CHUNK>;
var<workgroup> largest: array<f32, TILE_N>;
var<workgroup> weight_sum: array<f32, TILE_N>;
var<workgroup> correction: array<f32, TILE_N>;
var<workgroup> mixed: array<vec2<f32>, GROUP>;

fn key_pair(row: u32, j: u32, position: u32) -> vec2<f32> {
    let i = word_index(j);
    let first = key_word(row, i, position);
    if (KV == 0u) { return decoded(first, key_word(row, i + 1u, position), 0u, j); }
    if (KV == 1u) { return decoded(first, 0u, 0u, j); }
    return decoded(first, 0u, key_word(row, 0u, position), j);
}

fn value_pair(row: u32, j: u32, position: u32) -> vec2<f32> {
    let i = word_index(j);
    let first = value_word(row, i, position);
    if (KV == 0u) { return decoded(first, value_word(row, i + 1u, position), 0u, j); }
    if (KV == 1u) { return decoded(first, 0u, 0u, j); }
    return decoded(first, 0u, value_word(row, 0u, position), j);
}

fn row_at(sequence: u32, kv_head: u32, position: u32) -> u32 {
    let slot = u32(tables[sequence * p.max_blocks + position / 64u]) * 64u + position % 64u;
    return cache_row(slot, kv_head, p.n_kv_heads);
}

fn score(sequence: u32, kv_head: u32, position: u32, end: u32, thread: u32) {
    var sums: array<f32, TILE_N>;
    if (position < end) {
        let row = row_at(sequence, kv_head, position);
        for (var j = thread % 8u; j < PAIRS; j += 8u) {
            let k = key_pair(row, j, position);
            for (var h = 0u; h < TILE_N; h += 1u) { sums[h] += dot(queries[h * PAIRS + j], k); }
        }
    }
    for (var h = 0u; h < TILE_N; h += 1u) { parts[h * 128u + thread] = sums[h]; }
}

fn weigh(first: u32, end: u32, h: u32) { // softmax so far, by one thread for each head
    var most = largest[h];
    for (var i = 0u; i < min(CHUNK, end - first); i += 1u) {
        var sum = 0.0;
        for (var j = 0u; j < 8u; j += 1u) { sum += parts[h * 128u + i * 8u + j]; }
        weights[h * CHUNK + i] = sum * p.scale;
        most = max(most, sum * p.scale);
    }
    let before = exp(largest[h] - most);
    var total = weight_sum[h] * before;
    for (var i = 0u; i < min(CHUNK, end - first); i += 1u) {
        let weight = exp(weights[h * CHUNK + i] - most);
        weights[h * CHUNK + i] = weight;
        total += weight;
    }
    largest[h] = most;
    weight_sum[h] = total;
    correction[h] = before;
}

// Leaves largest and weight_sum of each head; gives this thread's share (SLICES of them) of the weighted values.
fn attend(sequence: u32, kv_head: u32, begin: u32, end: u32, thread: u32) -> array<vec2<f32>, TILE_N> {
    var sums: array<vec2<f32>, TILE_N>;
    if (thread < TILE_N) {
        largest[thread] = LOW;
        weight_sum[thread] = 0.0;
    }
    workgroupBarrier();
    let slice = thread / PAIRS;
    let j = thread % PAIRS;
    for (var first = begin; first < end; first += CHUNK) {
        if (thread < 128u) { score(sequence, kv_head, first + thread / 8u, end, thread); }
        workgroupBarrier();
        if (thread < TILE_N) { weigh(first, end, thread); }
        workgroupBarrier();
        for (var h = 0u; h < TILE_N; h += 1u) { sums[h] *= correction[h]; }
        for (var i = slice; slice < SLICES && i < min(CHUNK, end - first); i += SLICES) {
            let v = value_pair(row_at(sequence, kv_head, first + i), j, first + i);
            for (var h = 0u; h < TILE_N; h += 1u) { sums[h] += weights[h * CHUNK + i] * v; }
        }
    }
    return sums;
}

fn over_slices(share: vec2<f32>, thread: u32) -> vec2<f32> { // the sum, for threads below PAIRS
    mixed[thread] = share;
    workgroupBarrier();
    var sum = vec2<f32>(0.0);
    if (thread < PAIRS) {
        for (var i = 0u; i < SLICES; i += 1u) { sum += mixed[i * PAIRS + thread]; }
    }
    workgroupBarrier();
    return sum;
}
