// attention for the rows of prompts; formula and shapes as in attention.wgsl. A workgroup of 128 threads computes 32
// queries: TILE_N heads of a key/value head by TILE_T rows. Keys, then values of STEP (16 or 32) positions pass through
// workgroup memory. Sixteen threads share four queries: each computes their scores with every sixteenth key, then every
// sixteenth vec4 of their sums.
#include "numbers.wgsl"
#include "cache_rows.wgsl"
#include "attention_bindings.wgsl"
#include "cache_pairs.wgsl"

const FOURS = HEAD_DIM / 4u; // vec4 of a head: 16 or 32
const WIDE = FOURS == 32u;
const TWO = STEP == 32u; // keys of a thread; otherwise one
const STRIDE = FOURS + 1u; // spreads rows over banks
const LOW = -3.0e38;

var<workgroup> queries: array<vec4<f32>, 32u * FOURS>; // times scale
var<workgroup> tile: array<vec4<f32>, STEP * STRIDE>;
var<workgroup> weights: array<vec4<f32>, STEP * 8u>; // [position][four queries]
var<workgroup> shared_by: array<vec4<f32>, 128>; // [four queries][thread]

fn place(row: u32) -> vec4<i32> { // past the end as of an unused row
    if (row >= p.rows) { return vec4<i32>(-1); }
    return step[row];
}

fn query_at(n: u32, first: u32, head: u32) -> u32 { // index of query n
    return ((first + n / TILE_N) * p.n_heads + head + n % TILE_N) * HEAD_DIM;
}

fn load_queries(first: u32, head: u32, thread: u32) {
    for (var i = thread; i < 32u * FOURS; i += GROUP) {
        let at = query_at(i / FOURS, first, head) + 4u * (i % FOURS);
        var z = vec4<f32>(0.0);
        if (first + i / FOURS / TILE_N < p.rows) { z = vec4<f32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * p.scale; }
        queries[i] = z;
    }
}

fn load_keys(row: u32, count: u32, thread: u32) { // zero from position `count` on
    for (var i = thread; i < STEP * FOURS; i += GROUP) {
        let at = i / FOURS;
        let j = i % FOURS;
        let key = row + at * ROW_WORDS;
        var z = vec4<f32>(0.0);
        if (at < count) {
            z = vec4<f32>(pair_of(key_words(key, 2u * j), 2u * j), pair_of(key_words(key, 2u * j + 1u), 2u * j + 1u));
        }
        tile[at * STRIDE + j] = z;
    }
}

fn load_values(row: u32, count: u32, thread: u32) {
    for (var i = thread; i < STEP * FOURS; i += GROUP) {
        let at = i / FOURS;
        let j = i % FOURS;
        let value = row + at * ROW_WORDS;
        var z = vec4<f32>(0.0);
        if (at < count) {
            z = vec4<f32>(pair_of(value_words(value, 2u * j), 2u * j), pair_of(value_words(value, 2u * j + 1u), 2u * j + 1u));
        }
        tile[at * STRIDE + j] = z;
    }
}

// Positions from which on a thread's four queries see nothing: rows outside begin .. end - 1 belong to other sequences.
fn limits_of(four: u32, first: u32, begin: u32, end: u32) -> vec4<i32> {
    var limits = vec4<i32>(0);
    for (var i = 0u; i < 4u; i += 1u) {
        let row = (4u * four + i) / TILE_N;
        if (row >= begin && row < end) { limits[i] = place(first + row).y + 1; }
    }
    return limits;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let four = thread / 16u;
    let lane = thread % 16u;
    let head = group.x * TILE_N;
    let kv_head = head / (p.n_heads / p.n_kv_heads);
    let first = ((p.rows + TILE_T - 1u) / TILE_T - 1u - group.y) * TILE_T; // the longest rows start first
    var a0 = vec4<f32>(0.0); var a1 = a0; var a2 = a0; var a3 = a0;
    var b0 = a0; var b1 = a0; var b2 = a0; var b3 = a0;
    var total = vec4<f32>(0.0);
    var most = vec4<f32>(LOW);
    load_queries(first, head, thread);
    for (var begin = 0u; begin < TILE_T;) { // rows of one sequence at a time
        let sequence = place(first + begin).w;
        var end = begin;
        var last = -1;
        while (end < TILE_T) {
            let at = place(first + end);
            if (at.w != sequence) { break; }
            last = max(last, at.y);
            end += 1u;
        }
        let limits = limits_of(four, first, begin, end);
        for (var start = 0; start <= last; start += i32(STEP)) {
            let slot = u32(tables[u32(sequence) * p.max_blocks + u32(start) / 64u]) * 64u + u32(start) % 64u;
            let row = cache_row(slot, kv_head, p.n_kv_heads);
            let count = u32(last + 1 - start);
            load_keys(row, count, thread);
            workgroupBarrier();
            var s = vec4<f32>(0.0);
            var t = vec4<f32>(0.0);
            for (var j = 0u; j < FOURS; j += 1u) {
                let q0 = queries[4u * four * FOURS + j];
                let q1 = queries[(4u * four + 1u) * FOURS + j];
                let q2 = queries[(4u * four + 2u) * FOURS + j];
                let q3 = queries[(4u * four + 3u) * FOURS + j];
                let k = tile[lane * STRIDE + j];
                s += vec4<f32>(dot(q0, k), dot(q1, k), dot(q2, k), dot(q3, k));
                if (TWO) {
                    let l = tile[(lane + 16u) * STRIDE + j];
                    t += vec4<f32>(dot(q0, l), dot(q1, l), dot(q2, l), dot(q3, l));
                }
            }
            let before = most;
            let s_seen = vec4<i32>(start + i32(lane)) < limits;
            let t_seen = vec4<i32>(start + i32(lane) + 16) < limits;
            most = max(most, select(vec4<f32>(LOW), s, s_seen));
            if (TWO) { most = max(most, select(vec4<f32>(LOW), t, t_seen)); }
            shared_by[thread] = most;
            workgroupBarrier();
            load_values(row, count, thread);
            for (var i = 0u; i < 16u; i += 1u) { most = max(most, shared_by[16u * four + i]); }
            let factor = exp(before - most);
            let s_weight = select(vec4<f32>(0.0), exp(s - most), s_seen);
            weights[lane * 8u + four] = s_weight;
            total = total * factor + s_weight;
            if (TWO) {
                let t_weight = select(vec4<f32>(0.0), exp(t - most), t_seen);
                weights[(lane + 16u) * 8u + four] = t_weight;
                total += t_weight;
            }
            a0 *= factor.x; a1 *= factor.y; a2 *= factor.z; a3 *= factor.w;
            if (WIDE) { b0 *= factor.x; b1 *= factor.y; b2 *= factor.z; b3 *= factor.w; }
            workgroupBarrier();
            for (var i = 0u; i < STEP; i += 1u) {
                let weight = weights[i * 8u + four];
                let v = tile[i * STRIDE + lane];
                a0 += weight.x * v; a1 += weight.y * v; a2 += weight.z * v; a3 += weight.w * v;
                if (WIDE) {
                    let u = tile[i * STRIDE + lane + 16u];
                    b0 += weight.x * u; b1 += weight.y * u; b2 += weight.z * u; b3 += weight.w * u;
                }
            }
            workgroupBarrier();
        }
        begin = end;
    }
    shared_by[thread] = total;
    workgroupBarrier();
    total = vec4<f32>(0.0);
    for (var i = 0u; i < 16u; i += 1u) { total += shared_by[16u * four + i]; }
    write(a0, b0, total.x, 4u * four, first, head, lane);
    write(a1, b1, total.y, 4u * four + 1u, first, head, lane);
    write(a2, b2, total.z, 4u * four + 2u, first, head, lane);
    write(a3, b3, total.w, 4u * four + 3u, first, head, lane);
}

fn write(a: vec4<f32>, b: vec4<f32>, total: f32, n: u32, first: u32, head: u32, lane: u32) { // of query n
    let row = first + n / TILE_N;
    if (row >= p.rows) { return; }
    let used = step[row].y >= 0;
    let at = query_at(n, first, head) + 4u * lane;
    for (var i = 0u; i < 4u; i += 1u) {
        out[at + i] = select(0.0, a[i] / total, used);
        if (WIDE) { out[at + 64u + i] = select(0.0, b[i] / total, used); }
    }
}
