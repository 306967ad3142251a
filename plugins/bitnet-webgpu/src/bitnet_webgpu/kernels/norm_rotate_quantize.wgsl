// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gamma (NORM 1) or x[t] (NORM 0), stored if KEEP is 1; then H(signs * y) for
// each HADAMARD columns, quantized (rotate_quantize.wgsl). One workgroup per TILE_N * HADAMARD columns of a row; each
// sums the squares of the whole row. x, y f32[rows, width]; gamma, signs f32[width]; q i8[rows, width]; scale f32, qsum
// i32 [rows, width / 32].
#include "reduce.wgsl"
#include "rotate_quantize.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> signs: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> q: array<u32>;
@group(0) @binding(5) var<storage, read_write> scale: array<f32>;
@group(0) @binding(6) var<storage, read_write> qsum: array<i32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let words = p.width / 4u;
    let row = group.y * words;
    var mean = 0.0;
    if (NORM == 1u) {
        var sum = 0.0;
        for (var i = thread; i < words; i += GROUP) { sum += dot(x[row + i], x[row + i]); }
        mean = group_sum_max(sum, 0u, thread).sum / f32(p.width);
    }
    let factor = or_nan(1.0 / sqrt(mean + p.eps), is_bad(mean));
    let begin = group.x * TILE_N * GROUP;
    for (var first = begin; first < min(begin + TILE_N * GROUP, words); first += GROUP) {
        let word = first + thread;
        var z = x[row + word];
        if (NORM == 1u) { z = z * factor * gamma[word]; }
        if (KEEP == 1u) { y[row + word] = z; }
        rotate_quantize(row, word, z, thread);
    }
}
