// Attention of TILE_N query heads, in `queries`, that share a key/value head, over positions begin .. end - 1 of a
// sequence, CHUNK at a time: eight threads compute a position's scores, CHUNK threads the weights of a head, then PAIRS
// threads (several times, if there are more) the values. key_word(row, i, p) and value_word(row, i, p) return words of
// the cache row that starts at `row`, of position p.

const CHUNK = 16u;
const SLICES = max(1u, GROUP / PAIRS); // of a chunk's positions
const LOW = -3.0e38;

var<workgroup> queries: array<vec2<f32>, TILE_N * PAIRS>;
var<workgroup> parts: array<f32, TILE_N * 128u>; // [head][position][octet]
var<workgroup> weights: array<f32, TILE_N * (CHUNK + 1u)>; // plus a zero
var<workgroup> largest: array<f32, TILE_N>;
var<workgroup> weight_sum: array<f32, TILE_N>;
var<workgroup> correction: array<f32, TILE_N>;
var<workgroup> mixed: array<vec2<f32>, TILE_N * GROUP>;

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

// Loops have fixed lengths, so that their loads are in flight together. row: of the chunk's first position.
fn score(row: u32, first: u32, count: u32, thread: u32) {
    var sums: array<f32, TILE_N>;
    let i = thread / 8u;
    if (i < count) {
        for (var step = 0u; step < (PAIRS + 7u) / 8u; step += 1u) {
            let j = 8u * step + thread % 8u;
            if (PAIRS % 8u == 0u || j < PAIRS) {
                let k = key_pair(row + i * ROW_WORDS, j, first + i);
                for (var h = 0u; h < TILE_N; h += 1u) { sums[h] += dot(queries[h * PAIRS + j], k); }
            }
        }
    }
    for (var h = 0u; h < TILE_N; h += 1u) {
        let sum = near_sum(sums[h], 8u);
        if (thread < 128u) { parts[h * 128u + thread] = sum; }
    }
}

fn sum_parts(at: u32) { // of a head and position, if its eight threads are not in one subgroup
    var sum = 0.0;
    for (var j = 0u; j < 8u; j += NEAR) { sum += parts[at + j]; }
    parts[at] = sum;
}

// Running softmax: returns the weight of position i of a chunk for head h. before: the largest score of earlier chunks,
// updated to the largest so far in each of a head's CHUNK threads.
fn weigh(h: u32, i: u32, count: u32, before: f32) -> f32 {
    var most = before;
    for (var k = 0u; k < count; k += 1u) { most = max(most, parts[h * 128u + k * 8u] * p.scale); }
    weights[h * (CHUNK + 1u) + i] = select(0.0, exp(parts[h * 128u + i * 8u] * p.scale - most), i < count);
    if (i == 0u) { correction[h] = exp(before - most); }
    return most;
}

// Computes largest and weight_sum of each head; returns this thread's share (SLICES of them) of the weighted values.
fn attend(sequence: u32, kv_head: u32, begin: u32, end: u32, thread: u32) -> array<vec2<f32>, TILE_N> {
    var sums: array<vec2<f32>, TILE_N>;
    var most = LOW;
    var total = 0.0;
    let h = thread / CHUNK;
    let slice = thread / PAIRS;
    let j = thread % PAIRS;
    if (thread < TILE_N) { weights[thread * (CHUNK + 1u) + CHUNK] = 0.0; } // workgroup memory of trusted modules holds old data
    for (var first = begin; first < end; first += CHUNK) {
        let count = min(CHUNK, end - first);
        let row = row_at(sequence, kv_head, first); // a chunk lies within a cache block
        score(row, first, count, thread);
        workgroupBarrier();
        if (NEAR < 8u) {
            if (h < TILE_N) { sum_parts(h * 128u + thread % CHUNK * 8u); }
            workgroupBarrier();
        }
        if (h < TILE_N) { most = weigh(h, thread % CHUNK, count, most); }
        workgroupBarrier();
        if (thread < TILE_N) {
            total *= correction[thread];
            for (var i = 0u; i < count; i += 1u) { total += weights[thread * (CHUNK + 1u) + i]; }
        }
        for (var k = 0u; k < TILE_N; k += 1u) { sums[k] *= correction[k]; }
        for (var step = 0u; step < (CHUNK + SLICES - 1u) / SLICES; step += 1u) {
            let i = min(slice + step * SLICES, CHUNK); // weights are zero from count on
            let at = min(i, count - 1u);
            let v = value_pair(row + at * ROW_WORDS, j, first + at);
            for (var k = 0u; k < TILE_N; k += 1u) { sums[k] += weights[k * (CHUNK + 1u) + i] * v; }
        }
    }
    if (h < TILE_N && thread % CHUNK == 0u) { largest[h] = most; }
    if (thread < TILE_N) { weight_sum[thread] = total; }
    return sums;
}

fn mix(shares: array<vec2<f32>, TILE_N>, thread: u32) { // stores the results of all threads, for `mixed_at`
    var mine = shares;
    for (var h = 0u; h < TILE_N; h += 1u) { mixed[h * GROUP + thread] = mine[h]; }
    workgroupBarrier();
}

fn mixed_at(h: u32, j: u32) -> vec2<f32> { // returns pair j of the sum over slices
    var sum = vec2<f32>(0.0);
    for (var i = 0u; i < SLICES; i += 1u) { sum += mixed[h * GROUP + i * PAIRS + j]; }
    return sum;
}
