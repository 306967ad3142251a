// Rotates (and norms, if QKNORM is 1) the query and key heads of qkv (turn.wgsl); writes q, and k and v to the caches
// at the row's slot. One workgroup per head and row; rows with position < 0 or slot < 0 store nothing.
// qkv f32[rows, (n_heads + 2 n_kv_heads) head_dim]; step i32[rows, 4]; rope f32[positions, head_dim / 2, 2]; q_gamma,
// k_gamma f32[head_dim]; q f32[rows, n_heads head_dim]; k_cache, v_cache: cache rows.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "cache_rows.wgsl"
#include "store_row.wgsl"
#include "turn.wgsl"
@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(2) var<storage, read> rope: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> q_gamma: array<f32>;
@group(0) @binding(4) var<storage, read> k_gamma: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(7) var<storage, read_write> v_cache: array<u32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let which = group.x;
    let row = step[group.y];
    let at = (group.y * (p.n_heads + 2u * p.n_kv_heads) + which) * HEAD_DIM;
    let rotates = which < p.n_heads + p.n_kv_heads;
    let position = u32(max(row.y, 0));
    let factor = head_factor(at, p.eps, thread);
    for (var d = thread; d < HEAD_DIM; d += GROUP) {
        if (rotates) { head[d] = turned(at, d, which < p.n_heads, position, factor); } else { head[d] = qkv[at + d]; }
    }
    workgroupBarrier();
    let absmax = head_scale(thread);
    if (which < p.n_heads) {
        for (var d = thread; d < HEAD_DIM; d += GROUP) { q[(group.y * p.n_heads + which) * HEAD_DIM + d] = head[d]; }
    } else if (row.y >= 0 && row.z >= 0) {
        let to = cache_row(u32(row.z), which - p.n_heads - select(p.n_kv_heads, 0u, rotates), p.n_kv_heads);
        for (var i = thread; i < ROW_WORDS; i += GROUP) {
            if (rotates) { k_cache[to + i] = encoded(i, absmax); } else { v_cache[to + i] = encoded(i, absmax); }
        }
    }
}
