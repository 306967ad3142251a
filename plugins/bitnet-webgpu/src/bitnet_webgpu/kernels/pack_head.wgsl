// Int8 copy of w f16[outs, width]: scale[n] = max|w[n]| / 127, codes[n, k] = round(w[n, k] / scale[n]), error[n] = 1.002
// (|w[n] - scale[n] codes[n]| + r |w[n]|) with r = 3 (width + 64) 2^-24. A row with a NaN or Inf gets scale NaN, codes and
// error 0. codes i8[outs, width]; scale, error f32[outs]. A workgroup packs TILE_N rows in sequence, a thread four
// columns at a time.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "four_columns.wgsl"
@group(0) @binding(0) var<storage, read> w: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> error: array<f32>;

const MARGIN = 1.002; // exceeds the error of the f32 sums

fn weights(i: u32) -> vec4<f32> { return vec4<f32>(unpack2x16float(w[i].x), unpack2x16float(w[i].y)); }

fn pack(n: u32, thread: u32) {
    let words = p.width / 4u;
    var most = 0u;
    for (var i = thread; i < words; i += GROUP) { most = max(most, largest_bits(weights(n * words + i))); }
    most = group_sum_max(0.0, most, thread).most;
    let bad = most >= INF_BITS;
    let unit = bitcast<f32>(select(most, 0u, bad)) / 127.0;
    var inverse = 0.0;
    if (unit > 0.0) { inverse = 1.0 / unit; }
    var apart = 0.0;
    var squares = 0.0;
    for (var i = thread; i < words; i += GROUP) {
        let v = select(weights(n * words + i), vec4<f32>(0.0), bad);
        let code = clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0));
        let rest = v - code * unit;
        codes[n * words + i] = word_of(vec4<i32>(code));
        apart += dot(rest, rest);
        squares += dot(v, v);
    }
    apart = group_sum_max(apart, 0u, thread).sum;
    squares = group_sum_max(squares, 0u, thread).sum;
    if (thread == 0u) {
        scale[n] = or_nan(unit, bad);
        error[n] = MARGIN * (sqrt(apart) + 3.0 * f32(p.width + 64u) / 16777216.0 * sqrt(squares));
    }
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let end = min((group.x + 1u) * TILE_N, p.outs);
    for (var n = group.x * TILE_N; n < end; n += 1u) { pack(n, thread); }
}
