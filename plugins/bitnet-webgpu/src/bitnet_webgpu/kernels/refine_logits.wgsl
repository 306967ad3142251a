// Replaces approximate logits[l, n] that may be among the k largest by sum_k x[l, k] w[n, k] in f32: those with approx +
// error[n] |x[l]| not below the k-th largest of bound[l], all if one of these is NaN or there are fewer than k. x
// f32[rows, width]; w f16[outs, width]; error f32[outs]; bound f32[rows, ceil(outs / HEAD_GROUP)]; logits f32[rows,
// stride]. A workgroup lists such logits among TILE_N; then 32 threads compute each of them, with the sums of
// matmul_dense.wgsl. FAST: rows of w are whole vec4 of eight elements.
#include "numbers.wgsl"
#include "order.wgsl"
#include "reduce.wgsl"
#include "dense.wgsl"
#include "histogram.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> error: array<f32>;
@group(0) @binding(3) var<storage, read> bound: array<f32>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;

const LONGER = 1.00001; // exceeds the error of the f32 sum of squares
const SETS_OF_32 = GROUP / 32u;

var<workgroup> threshold: vec2<u32>; // the bytes of the k-th largest bound so far, and how many of these are wanted
var<workgroup> count: atomic<u32>;
var<workgroup> opened: u32;
var<workgroup> open: array<u32, TILE_N>;
var<workgroup> shares: array<f32, GROUP>;

fn table_word(i: u32) -> u32 { return w[i / 4u][i % 4u]; }

fn next_byte(shift: u32, base: u32, groups: u32, thread: u32) { // of the k-th largest bound, from the top
    atomicStore(&histogram[thread], 0u);
    let known = workgroupUniformLoad(&threshold).x;
    for (var i = thread; i < groups; i += GROUP) {
        let order = ordered(bound[base + i]);
        if (shift == 24u || (order >> (shift + 8u)) == known) { atomicAdd(&histogram[(order >> shift) & 255u], 1u); }
    }
    workgroupBarrier();
    if (thread == 0u) {
        let found = kth_byte(threshold.y);
        threshold = vec2<u32>((known << 8u) | found.byte, found.wanted);
    }
    workgroupBarrier();
}

fn kth_bound(base: u32, groups: u32, thread: u32) -> u32 {
    if (thread == 0u) { threshold = vec2<u32>(0u, p.k); }
    for (var round = 0u; round < 4u; round += 1u) { next_byte(24u - 8u * round, base, groups, thread); }
    return workgroupUniformLoad(&threshold).x;
}

fn eight(v: vec4<u32>, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return dot(vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)), a) +
           dot(vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)), b);
}

fn share(n: u32, row: u32, lane: u32) -> f32 { // a thread's part of an exact logit
    var sum = 0.0;
    if (FAST == 1u) {
        for (var i = lane; i < p.width / 8u; i += 32u) {
            sum += eight(w[n * (p.width / 8u) + i], x[row / 4u + 2u * i], x[row / 4u + 2u * i + 1u]);
        }
    } else {
        for (var k = lane; k < p.width; k += 32u) { sum += x[(row + k) / 4u][k % 4u] * element(n, k, p.width); }
    }
    return sum;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * p.width;
    let groups = (p.outs + HEAD_GROUP - 1u) / HEAD_GROUP;
    var squares = 0.0;
    for (var i = thread; i < p.width / 4u; i += GROUP) { squares += dot(x[row / 4u + i], x[row / 4u + i]); }
    var most = 0u;
    for (var i = thread; i < groups; i += GROUP) { most = max(most, ordered(bound[group.y * groups + i])); }
    let found = group_sum_max(squares, most, thread);
    let length = sqrt(found.sum) * LONGER;
    var least = found.most;
    if (p.k > 1u) { least = kth_bound(group.y * groups, groups, thread); }
    if (found.most == NAN_ORDER || p.k > groups) { least = 0u; }
    if (thread == 0u) { atomicStore(&count, 0u); }
    workgroupBarrier();
    let end = min((group.x + 1u) * TILE_N, p.outs);
    for (var n = group.x * TILE_N + thread; n < end; n += GROUP) {
        let largest = logits[group.y * p.stride + n] + error[n] * length;
        if (ordered(largest) >= least) { open[atomicAdd(&count, 1u)] = n; }
    }
    workgroupBarrier();
    if (thread == 0u) { opened = atomicLoad(&count); }
    let many = workgroupUniformLoad(&opened);
    for (var i = 0u; i < many; i += SETS_OF_32) {
        let at = i + thread / 32u;
        let n = open[min(at, many - 1u)];
        shares[thread] = near_sum(share(n, row, thread % 32u), 32u);
        workgroupBarrier();
        if (thread % 32u == 0u && at < many) {
            var total = 0.0;
            for (var lane = 0u; lane < 32u; lane += NEAR) { total += shares[thread + lane]; }
            logits[group.y * p.stride + n] = total;
        }
        workgroupBarrier();
    }
}
