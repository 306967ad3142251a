// x[t, k] = table[token[t] - first, k] for rows with first <= token[t] < first + count; one thread per element.
// table[count, hidden] of DTYPE; step i32[rows, 4]; x f32[rows, hidden].
#include "dense.wgsl"
@group(0) @binding(0) var<storage, read> table: array<u32>;
@group(0) @binding(1) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

fn table_word(i: u32) -> u32 { return table[i]; }

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let k = group.x * TILE_N + thread;
    let row = u32(step[group.y].x) - p.first;
    if (k < p.hidden && row < p.count) { x[group.y * p.hidden + k] = element(row, k, p.hidden); }
}
