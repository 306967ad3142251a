// m = act(gate) * up of gate_up = [gate | up] (gate.wgsl); then H(signs * m) for each HADAMARD columns, quantized
// (rotate_quantize.wgsl); one workgroup per HADAMARD columns of a row. gate_up f32[rows, 2 width]; signs f32[width]; q
// i8[rows, width]; scale f32, qsum i32 [rows, width / 32].
#include "gate.wgsl"
#include "rotate_quantize.wgsl"
@group(0) @binding(0) var<storage, read> gate_up: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> signs: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> q: array<u32>;
@group(0) @binding(3) var<storage, read_write> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> qsum: array<i32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let words = p.width / 4u;
    let row = group.y * words;
    let word = group.x * GROUP + thread;
    let g = gate_up[2u * row + word];
    let u = gate_up[2u * row + words + word];
    let m = vec4<f32>(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
    rotate_quantize(row, word, m, thread);
}
