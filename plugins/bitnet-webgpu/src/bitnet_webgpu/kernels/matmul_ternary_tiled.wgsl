// matmul_ternary for the rows of a prompt (product_tiled.wgsl). Formula and shapes as in matmul_ternary.wgsl.
#include "codes.wgsl"
#include "product_bindings.wgsl"
#include "product_tiled.wgsl"
const BLOCK = 0u;
const ABLOCK = 0u;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) { tiled(group, thread); }
