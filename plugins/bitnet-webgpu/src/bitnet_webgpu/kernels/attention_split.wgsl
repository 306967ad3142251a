// attention with SPLITS workgroups that share the positions of a row, and one more that merges their results.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "cache_rows.wgsl"
#include "attention_bindings.wgsl"
#include "take_queries.wgsl"
#include "cache_pairs.wgsl"
#include "attend.wgsl"
#include "attended.wgsl"
@group(0) @binding(6) var<storage, read_write> workspace: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = step[group.y];
    let kv_head = group.x * TILE_N / (p.n_heads / p.n_kv_heads);
    let range = share_of(u32(max(row.y + 1, 0)), group.z);
    let fetched = fetch(u32(row.w), kv_head, range.x, range.y, thread);
    take_queries(group, thread);
    keep(attend(fetched, u32(row.w), kv_head, range.x, range.y, thread), group, thread);
}

@compute @workgroup_size(GROUP)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    merge_head(group, step[group.y].y >= 0, thread);
}
