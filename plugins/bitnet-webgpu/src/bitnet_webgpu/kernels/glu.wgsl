// m = act(gate) * up of gate_up = [gate | up] (gate.wgsl); one workgroup per row. gate_up f32[rows, 2 width]; m
// f32[rows, width].
#include "numbers.wgsl"
#include "gate.wgsl"
@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> m: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let gate = 2u * group.x * p.width;
    for (var k = thread; k < p.width; k += GROUP) {
        m[group.x * p.width + k] = gated(gate_up[gate + k], gate_up[gate + p.width + k]);
    }
}
