// y[t] = H(signs * x[t]) or, with INVERSE 1, signs * H(x[t]), with H over each HADAMARD columns, the normalized
// Walsh-Hadamard transform; one workgroup per HADAMARD columns of a row. x, y f32[rows, width]; signs f32[width].
#include "hadamard.wgsl"
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> signs: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * HADAMARD;
    let row = group.y * p.width + first;
    for (var i = thread; i < HADAMARD; i += GROUP) {
        if (INVERSE == 1u) { v[i] = x[row + i]; } else { v[i] = x[row + i] * signs[first + i]; }
    }
    hadamard(thread);
    for (var i = thread; i < HADAMARD; i += GROUP) {
        let z = v[i] * hadamard_factor();
        if (INVERSE == 1u) { y[row + i] = z * signs[first + i]; } else { y[row + i] = z; }
    }
}
