// Attention of TILE_N query heads, in `queries`, that share a key/value head, over positions begin .. end - 1 of a
// sequence, CHUNK at a time: eight threads compute a position's scores, CHUNK threads the weights of a head, then PAIRS
// threads (several times, if there are more) the values. A chunk is loaded while the one before is computed, the first
// one with `fetch` before the queries are known. key_now(words, j, p) and value_now(words, j, p) return the words of
// position p, given those of the cache.

const CHUNK = GROUP / 8u;
const SLICES = max(1u, GROUP / PAIRS); // of a chunk's positions
const STEPS = (CHUNK + SLICES - 1u) / SLICES; // values of a thread
const KEY_STEPS = (PAIRS + 7u) / 8u; // pairs of a key for a thread
const LOW = -3.0e38;

var<workgroup> queries: array<vec2<f32>, TILE_N * PAIRS>;
var<workgroup> parts: array<f32, TILE_N * GROUP>; // [head][position][octet]
var<workgroup> weights: array<f32, TILE_N * (CHUNK + 1u)>; // plus a zero
var<workgroup> largest: array<f32, TILE_N>;
var<workgroup> weight_sum: array<f32, TILE_N>;
var<workgroup> correction: array<f32, TILE_N>;
var<workgroup> mixed: array<vec2<f32>, TILE_N * GROUP>;

struct Chunk { keys: array<vec3<u32>, KEY_STEPS>, values: array<vec3<u32>, STEPS> }

// Loops have fixed lengths, so that their loads are in flight together.
fn fetch(sequence: u32, kv_head: u32, first: u32, end: u32, thread: u32) -> Chunk {
    var chunk: Chunk;
    if (first >= end) { return chunk; }
    let row = row_at(sequence, kv_head, first); // a chunk lies within a cache block
    let last = min(CHUNK, end - first) - 1u;
    let key = row + min(thread / 8u, last) * ROW_WORDS;
    for (var step = 0u; step < KEY_STEPS; step += 1u) {
        chunk.keys[step] = key_words(key, min(8u * step + thread % 8u, PAIRS - 1u));
    }
    for (var step = 0u; step < STEPS; step += 1u) {
        chunk.values[step] = value_words(row + min(thread / PAIRS + step * SLICES, last) * ROW_WORDS, thread % PAIRS);
    }
    return chunk;
}

fn score(keys: array<vec3<u32>, KEY_STEPS>, first: u32, count: u32, thread: u32) {
    var words = keys;
    var sums: array<f32, TILE_N>;
    let i = thread / 8u;
    if (i < count) {
        for (var step = 0u; step < KEY_STEPS; step += 1u) {
            let j = 8u * step + thread % 8u;
            if (PAIRS % 8u == 0u || j < PAIRS) {
                let k = pair_of(key_now(words[step], j, first + i), j);
                for (var h = 0u; h < TILE_N; h += 1u) { sums[h] += dot(queries[h * PAIRS + j], k); }
            }
        }
    }
    for (var h = 0u; h < TILE_N; h += 1u) {
        let sum = near_sum(sums[h], 8u);
        parts[h * GROUP + thread] = sum;
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
    for (var k = 0u; k < CHUNK; k += 1u) { most = max(most, select(LOW, parts[h * GROUP + k * 8u] * p.scale, k < count)); }
    weights[h * (CHUNK + 1u) + i] = select(0.0, exp(parts[h * GROUP + i * 8u] * p.scale - most), i < count);
    if (i == 0u) { correction[h] = exp(before - most); }
    return most;
}

// Computes largest and weight_sum of each head; returns this thread's share (SLICES of them) of the weighted values.
// fetched: the first chunk.
fn attend(fetched: Chunk, sequence: u32, kv_head: u32, begin: u32, end: u32, thread: u32) -> array<vec2<f32>, TILE_N> {
    var sums: array<vec2<f32>, TILE_N>;
    var most = LOW;
    var total = 0.0;
    let h = thread / CHUNK;
    let slice = thread / PAIRS;
    let j = thread % PAIRS;
    if (thread < TILE_N) { weights[thread * (CHUNK + 1u) + CHUNK] = 0.0; } // workgroup memory of trusted modules holds old data
    var next = fetched;
    for (var first = begin; first < end; first += CHUNK) {
        var chunk = next;
        next = fetch(sequence, kv_head, first + CHUNK, end, thread);
        let count = min(CHUNK, end - first);
        score(chunk.keys, first, count, thread);
        workgroupBarrier();
        if (NEAR < 8u) {
            if (h < TILE_N) { sum_parts(h * GROUP + thread % CHUNK * 8u); }
            workgroupBarrier();
        }
        if (h < TILE_N) { most = weigh(h, thread % CHUNK, count, most); }
        workgroupBarrier();
        if (thread < TILE_N) {
            total *= correction[thread];
            for (var i = 0u; i < CHUNK; i += 1u) { total += weights[thread * (CHUNK + 1u) + i]; }
        }
        for (var k = 0u; k < TILE_N; k += 1u) { sums[k] *= correction[k]; }
        for (var step = 0u; step < STEPS; step += 1u) {
            let i = min(slice + step * SLICES, CHUNK); // weights are zero from count on
            let v = pair_of(value_now(chunk.values[step], j, first + min(i, count - 1u)), j);
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
