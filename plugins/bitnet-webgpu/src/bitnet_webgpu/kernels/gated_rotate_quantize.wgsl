// y = gated_rms_norm of x, gate and gamma (gated_rms_norm.wgsl); then H(signs * y) for each HADAMARD columns, quantized
// (rotate_quantize.wgsl). One workgroup per HADAMARD columns of a row, which are whole heads if NORM is 1. x, gate
// f32[rows, n_heads, HEAD_DIM]; gamma f32[HEAD_DIM]; signs f32[n_heads HEAD_DIM]; q i8[rows, n_heads HEAD_DIM]; scale
// f32, qsum i32 [rows, n_heads HEAD_DIM / 32].
#include "rotate_quantize.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> signs: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> q: array<u32>;
@group(0) @binding(5) var<storage, read_write> scale: array<f32>;
@group(0) @binding(6) var<storage, read_write> qsum: array<i32>;

const WORDS = HEAD_DIM / 4u;
var<workgroup> squares: array<f32, GROUP>;

fn mean_square(thread: u32) -> f32 { // of the thread's head
    var sum = 0.0;
    for (var i = 0u; i < WORDS; i += 1u) { sum += squares[thread / WORDS * WORDS + i]; }
    return sum / f32(HEAD_DIM);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * p.n_heads * WORDS;
    let word = group.x * GROUP + thread;
    let to = word / WORDS;
    let per_group = p.n_heads / p.groups;
    let at = row + (to % per_group * p.groups + to / per_group) * WORDS + word % WORDS;
    var z = x[at];
    if (NORM == 1u) {
        squares[thread] = dot(z, z);
        workgroupBarrier();
        let mean = mean_square(thread);
        z = z * or_nan(1.0 / sqrt(mean + p.eps), is_bad(mean)) * gamma[word % WORDS];
    }
    let a = gate[at];
    let act = select(vec4<f32>(1.0), a, ACT == 1u) / (1.0 + exp(-a));
    let lost = is_nan(a.x) || is_nan(a.y) || is_nan(a.z) || is_nan(a.w); // exp may lose a NaN
    rotate_quantize(row, word, z * vec4<f32>(or_nan(act.x, lost), act.yzw), thread);
}
