// H(signs * z) of HADAMARD columns, four neighbouring ones for each of HADAMARD / 4 threads; then int8 codes: a =
// max(max|y|, 1e-20) over ABLOCK columns, q = round(y * (127 / a)), and for each 32 columns scale = a / 127 and qsum =
// sum q. ABLOCK columns with a value that is not finite get scale NaN and codes 0. The kernel binds signs, q, scale and
// qsum.
#include "numbers.wgsl"
#include "hadamard.wgsl"
#include "four_columns.wgsl"
#include "block_maximum.wgsl"

var<workgroup> sums: array<i32, GROUP>;

fn rotate_quantize(row: u32, word: u32, value: vec4<f32>, thread: u32) { // word: of the row; row: its first word in q
    let turned = value * signs[word];
    for (var i = 0u; i < 4u; i += 1u) { v[4u * thread + i] = turned[i]; }
    hadamard(thread);
    let z = vec4<f32>(v[4u * thread], v[4u * thread + 1u], v[4u * thread + 2u], v[4u * thread + 3u]) * hadamard_factor();
    let most = block_bits(largest_bits(z), 4u, thread);
    let bad = most >= INF_BITS;
    let a = max(bitcast<f32>(most), 1e-20);
    let code = select(vec4<i32>(clamp(round(z * (127.0 / a)), vec4<f32>(-128.0), vec4<f32>(127.0))), vec4<i32>(), bad);
    q[row + word] = word_of(code);
    sums[thread] = sum_of(code);
    workgroupBarrier();
    if (thread % 8u == 0u) {
        var sum = 0;
        for (var i = 0u; i < 8u; i += 1u) { sum += sums[thread + i]; }
        scale[(row + word) / 8u] = or_nan(a / 127.0, bad);
        qsum[(row + word) / 8u] = sum;
    }
}
