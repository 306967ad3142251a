// y[t, y_first + n] (+)= sum_b wscale[n, b] * scale[t] * (sum over block b of (code[n, k] - 1) q[t, k]) for a few rows
// t; if ABLOCK is not 0, scale[t, a] of each 32 columns within the sum. w u8[outs, width / 4]; wscale f32[outs,
// ceil(width / BLOCK)]; q i8[rows, width]; scale f32, qsum i32 [rows] or [rows, width / 32]; y f32[rows, y_stride].
#include "codes.wgsl"
#include "product_bindings.wgsl"
#include "scales.wgsl"
#include "product_few.wgsl"

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) { few(group, thread); }
