// logits[l, n] = scale[n] sum_k codes[n, k] x[l, k] in f32; bound[l, g] = max(logits[l, n] - error[n] |x[l]|) over the 64
// rows n of group g, NaN if one of these is not finite. x f32[rows, width]; codes i8[outs, width]; scale, error
// f32[outs]; logits f32[rows, stride]; bound f32[rows, ceil(outs / 64)]. One workgroup per group and row of x: 32 threads
// share TILE_N / SETS = 8 matrix rows. FAST: rows are whole vec4 of 16 codes.
#include "numbers.wgsl"
#include "order.wgsl"
#include "reduce.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scale: array<f32>;
@group(0) @binding(3) var<storage, read> error: array<f32>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;
@group(0) @binding(5) var<storage, read_write> bound: array<f32>;

const LONGER = 1.00001; // exceeds the error of the f32 sum of squares

var<workgroup> upper: array<vec4<f32>, GROUP>; // sums of neighbours: the first four rows of a set of 32 threads
var<workgroup> lower: array<vec4<f32>, GROUP>; // and the other four
var<workgroup> lengths: array<f32, GROUP>;

// The low bits of 2^23 + 128 + code are a byte of the word: no conversion of integers, which is slow on some GPUs.
fn floats(word: u32) -> vec4<f32> {
    let bytes = (vec4<u32>(word ^ 0x80808080u) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(0xffu);
    return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - vec4<f32>(8388736.0);
}

struct Columns { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn dot16(v: vec4<u32>, z: Columns) -> f32 {
    return dot(floats(v.x), z.a) + dot(floats(v.y), z.b) + dot(floats(v.z), z.c) + dot(floats(v.w), z.d);
}

fn word(i: u32) -> vec4<f32> { return floats(codes[i / 4u][i % 4u]); }

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * TILE_N + thread / 32u * 8u;
    let last = vec4<u32>(p.outs - 1u);
    let n = min(vec4<u32>(first, first + 1u, first + 2u, first + 3u), last);
    let m = min(vec4<u32>(first + 4u, first + 5u, first + 6u, first + 7u), last);
    let row = group.y * (p.width / 4u);
    var sum = vec4<f32>(0.0);
    var more = vec4<f32>(0.0);
    var squares = 0.0;
    if (FAST == 1u) {
        let vectors = p.width / 16u;
        let at = n * vectors;
        let to = m * vectors;
        for (var i = thread % 32u; i < vectors; i += 32u) {
            let v0 = codes[at.x + i];
            let v1 = codes[at.y + i];
            let v2 = codes[at.z + i];
            let v3 = codes[at.w + i];
            let v4 = codes[to.x + i];
            let v5 = codes[to.y + i];
            let v6 = codes[to.z + i];
            let v7 = codes[to.w + i];
            let k = row + 4u * i;
            let z = Columns(x[k], x[k + 1u], x[k + 2u], x[k + 3u]);
            squares += dot(z.a, z.a) + dot(z.b, z.b) + dot(z.c, z.c) + dot(z.d, z.d);
            sum += vec4<f32>(dot16(v0, z), dot16(v1, z), dot16(v2, z), dot16(v3, z));
            more += vec4<f32>(dot16(v4, z), dot16(v5, z), dot16(v6, z), dot16(v7, z));
        }
    } else {
        let words = p.width / 4u;
        let at = n * words;
        let to = m * words;
        for (var i = thread % 32u; i < words; i += 32u) {
            let z = x[row + i];
            squares += dot(z, z);
            sum += vec4<f32>(dot(word(at.x + i), z), dot(word(at.y + i), z), dot(word(at.z + i), z), dot(word(at.w + i), z));
            more += vec4<f32>(dot(word(to.x + i), z), dot(word(to.y + i), z), dot(word(to.z + i), z), dot(word(to.w + i), z));
        }
    }
    upper[thread] = vec4<f32>(near_sum(sum.x, 32u), near_sum(sum.y, 32u), near_sum(sum.z, 32u), near_sum(sum.w, 32u));
    lower[thread] = vec4<f32>(near_sum(more.x, 32u), near_sum(more.y, 32u), near_sum(more.z, 32u), near_sum(more.w, 32u));
    lengths[thread] = near_sum(squares, 32u);
    workgroupBarrier();
    let low = finish(group, thread);
    let most = group_sum_max(0.0, low, thread).most;
    if (thread == 0u) { bound[group.y * ((p.outs + TILE_N - 1u) / TILE_N) + group.x] = from_order(most); }
}

fn finish(group: vec3<u32>, thread: u32) -> u32 { // the order of a row's lower bound, 0 if the thread has no row
    let out = group.x * TILE_N + thread;
    if (thread >= TILE_N || out >= p.outs) { return 0u; }
    let neighbours = thread / 8u * 32u;
    var total = 0.0;
    var squares = 0.0;
    for (var lane = 0u; lane < 32u; lane += NEAR) {
        total += select(upper[neighbours + lane], lower[neighbours + lane], thread % 8u >= 4u)[thread % 4u];
        squares += lengths[neighbours + lane];
    }
    let approx = total * scale[out];
    let least = approx - error[out] * (sqrt(squares) * LONGER);
    logits[group.y * p.stride + out] = approx;
    return select(ordered(least), NAN_ORDER, is_bad(least));
}
