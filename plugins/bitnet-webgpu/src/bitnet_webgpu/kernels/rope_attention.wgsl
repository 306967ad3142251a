// rope_store_kv, then attention of the rotated queries, for rows of different sequences; one workgroup per TILE_N heads
// of a row. Rows with position < 0 or slot < 0 store nothing and produce zeros.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "cache_rows.wgsl"
#include "store_row.wgsl"
#include "turn.wgsl"
#include "cache_pairs.wgsl"
#include "attend.wgsl"
#include "rope_attention_bindings.wgsl"
#include "write_heads.wgsl"

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = step[group.y];
    let used = row.y >= 0 && row.z >= 0;
    let kv_head = kv_head_of(group);
    let end = select(0u, u32(row.y) + 1u, used);
    let fetched = fetch(u32(row.w), kv_head, 0u, end, thread);
    take_row(row, kv_head, group, thread);
    let shares = attend(fetched, u32(row.w), kv_head, 0u, end, thread);
    write_heads(shares, group, used, thread);
}
