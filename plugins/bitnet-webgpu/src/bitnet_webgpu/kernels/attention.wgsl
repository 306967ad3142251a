// out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions p = 0..position[t]; one workgroup per TILE_N
// heads of a row. Rows with position < 0 produce zeros.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "cache_rows.wgsl"
#include "attention_bindings.wgsl"
#include "take_queries.wgsl"
#include "cache_pairs.wgsl"
#include "attend.wgsl"
#include "write_heads.wgsl"

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = step[group.y];
    let kv_head = group.x * TILE_N / (p.n_heads / p.n_kv_heads);
    let end = u32(max(row.y + 1, 0));
    let fetched = fetch(u32(row.w), kv_head, 0u, end, thread);
    take_queries(group, thread);
    let shares = attend(fetched, u32(row.w), kv_head, 0u, end, thread);
    write_heads(shares, group, row.y >= 0, thread);
}
