// ids[l, i], values[l, i] = the k largest logits of row l in descending order, equal ones by ascending token, NaN the
// largest, padded with -1 and -Inf; total[l] = (m, log(sum exp(logit - m))), m the largest allowed logit. One workgroup
// per row.
// The k-th largest pair (key, ~token) is found byte by byte from the top with a histogram, then k pairs are ranked.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)]; ids i32[rows, k]; values f32[rows, k]; total f32[rows,
// 2].
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "logits.wgsl"
#include "histogram.wgsl"
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<i32>;
@group(0) @binding(2) var<storage, read_write> ids: array<i32>;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;
@group(0) @binding(4) var<storage, read_write> total: array<f32>;

struct Search { least: vec2<u32>, known: vec2<u32>, wanted: u32, done: u32 } // bytes fixed so far, and their mask

var<workgroup> search: Search;
var<workgroup> count: atomic<u32>;
var<workgroup> found: array<vec2<u32>, 256>;

fn pair_of(row: u32, token: u32) -> vec2<u32> { return vec2<u32>(key(row, token), ~token); }

fn above(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y > b.y); }

fn digit(pair: vec2<u32>, d: u32) -> u32 { return (pair[d / 4u] >> (24u - d % 4u * 8u)) & 255u; }

fn narrow(d: u32) { // finds one more byte of the k-th largest pair, in one thread
    let next = kth_byte(search.wanted);
    let shift = 24u - d % 4u * 8u;
    if (d < 4u) { search.least.x |= next.byte << shift; } else { search.least.y |= next.byte << shift; }
    if (d < 4u) { search.known.x |= 255u << shift; } else { search.known.y |= 255u << shift; }
    search.wanted = next.wanted;
    search.done = u32(next.here <= next.wanted); // all pairs that share these bytes are wanted
}

fn totals(row: u32, thread: u32) {
    var most = 0u;
    for (var i = thread; i < p.vocab; i += GROUP) { most = max(most, key(row, i)); }
    most = group_sum_max(0.0, most, thread).most;
    let largest = bitcast<f32>(select(bitcast<u32>(from_order(most)), 0xff800000u, most == 0u));
    var sum = 0.0;
    for (var i = thread; i < p.vocab; i += GROUP) {
        if (allowed(row, i)) { sum += exp(logits[row * p.stride + i] - largest); }
    }
    sum = group_sum_max(sum, 0u, thread).sum;
    if (thread == 0u) {
        let none = most == NAN_ORDER;
        total[2u * row] = or_nan(largest, none);
        total[2u * row + 1u] = or_nan(log(sum), none || is_bad(largest));
    }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x;
    if (thread == 0u) {
        search = Search(vec2<u32>(0u), vec2<u32>(0u), p.k, 0u);
        atomicStore(&count, 0u);
    }
    for (var d = 0u; d < 8u; d += 1u) { // always all rounds: some drivers miscompile a break between barriers
        atomicStore(&histogram[thread], 0u);
        let state = workgroupUniformLoad(&search);
        for (var i = thread; i < p.vocab && state.done == 0u; i += GROUP) {
            let pair = pair_of(row, i);
            if (all((pair & state.known) == state.least)) { atomicAdd(&histogram[digit(pair, d)], 1u); }
        }
        workgroupBarrier();
        if (thread == 0u && state.done == 0u) { narrow(d); }
        workgroupBarrier();
    }
    let least = workgroupUniformLoad(&search).least;
    for (var i = thread; i < p.vocab; i += GROUP) {
        let pair = pair_of(row, i);
        if (pair.x != 0u && !above(least, pair)) {
            let slot = atomicAdd(&count, 1u);
            if (slot < 256u) { found[slot] = pair; }
        }
    }
    workgroupBarrier();
    let many = min(atomicLoad(&count), p.k);
    if (thread < many) {
        var rank = 0u;
        for (var i = 0u; i < many; i += 1u) { rank += u32(above(found[i], found[thread])); }
        let token = ~found[thread].y;
        ids[row * p.k + rank] = i32(token);
        values[row * p.k + rank] = logits[row * p.stride + token];
    } else if (thread < p.k) {
        ids[row * p.k + thread] = -1;
        values[row * p.k + thread] = bitcast<f32>(select(0u, 0xff800000u, many < p.k));
    }
    totals(row, thread);
}
