// y[t, y_first + n] (+)= sum_k (code[n, k] - 1) q[t, k] * scale[t] * wscale[n] for a few rows t.
// w u8[outs, width / 4]; wscale f32[outs]; q i8[rows, width]; scale f32[rows]; qsum i32[rows]; y f32[rows, y_stride].
#include "codes.wgsl"
#include "product_bindings.wgsl"
#include "scales.wgsl"
#include "product_few.wgsl"
const BLOCK = 0u;
const ABLOCK = 0u;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) { few(group, thread); }
