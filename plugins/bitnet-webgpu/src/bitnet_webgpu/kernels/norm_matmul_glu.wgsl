// m[t, n] = act(gate) * up of the ternary products of x[t], normed (NORM 1) and quantized in every workgroup, with both
// halves of w = [gate | up]; one row t.
// x f32[1, columns]; gamma f32[columns]; w u8[2 outs, width / 4]; wscale f32[2 outs] or [2 outs, ceil(width / BLOCK)];
// m f32[1, outs].
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "quantize.wgsl"
#include "codes.wgsl"
#include "scales.wgsl"
#include "norm_product.wgsl"
#include "gate.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> wscale: array<f32>;
@group(0) @binding(4) var<storage, read_write> m: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let n = group.x * TILE_N + thread / LANES;
    let gate = min(n, p.outs - 1u);
    let up = gate + p.outs;
    let gate_codes = load(gate, thread % LANES);
    let up_codes = load(up, thread % LANES);
    let units = vec2<f32>(wscale[gate], wscale[up]);
    let total = prepare(thread);
    let gate_sum = product(gate_codes, gate, units.x, total, thread);
    let up_sum = product(up_codes, up, units.y, total, thread);
    if (thread % LANES == 0u && n < p.outs) { m[n] = gated(gate_sum, up_sum); }
}
