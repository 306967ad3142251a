// y[t, y_first + n] (+)= the ternary product of x[t], normed (NORM 1) and quantized in every workgroup
// (norm_product.wgsl); one row t. x f32[1, columns]; gamma f32[columns]; w u8[outs, width / 4]; wscale f32[outs] or
// [outs, ceil(width / BLOCK)]; y f32[1, y_stride].
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "quantize.wgsl"
#include "codes.wgsl"
#include "scales.wgsl"
#include "norm_product.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> wscale: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let n = group.x * TILE_N + thread / LANES;
    let out = min(n, p.outs - 1u);
    let codes = load(out, thread % LANES);
    let unit = wscale[out];
    var sum = 0.0; // loaded before the norm, like the codes
    if (ADD == 1u) { sum = y[p.y_first + out]; }
    let total = prepare(thread);
    let made = product(codes, out, unit, total, thread);
    if (thread % LANES == 0u && n < p.outs) { y[p.y_first + n] = select(made, sum + made, ADD == 1u); }
}
