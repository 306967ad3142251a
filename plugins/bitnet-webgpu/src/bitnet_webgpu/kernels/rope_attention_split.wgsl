// rope_attention with SPLITS workgroups that share the positions of a row, and one more that merges their results.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "cache_rows.wgsl"
#include "store_row.wgsl"
#include "turn.wgsl"
#include "cache_pairs.wgsl"
#include "attend.wgsl"
#include "rope_attention_bindings.wgsl"
#include "attended.wgsl"
@group(0) @binding(9) var<storage, read_write> workspace: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = step[group.y];
    let kv_head = kv_head_of(group);
    let range = share_of(select(0u, u32(row.y) + 1u, row.y >= 0 && row.z >= 0), group.z);
    let fetched = fetch(u32(row.w), kv_head, range.x, range.y, thread);
    take_row(row, kv_head, group, thread);
    keep(attend(fetched, u32(row.w), kv_head, range.x, range.y, thread), group, thread);
}

@compute @workgroup_size(GROUP)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    merge_head(group, step[group.y].y >= 0 && step[group.y].z >= 0, thread);
}
