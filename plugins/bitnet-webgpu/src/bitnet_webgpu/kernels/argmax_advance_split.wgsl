// argmax_advance with SPLITS workgroups per row, each over a part of the logits, and one more that merges their
// results. workspace u32[rows, SPLITS, 2]: key and token; other shapes as in argmax_advance.wgsl.
#include "numbers.wgsl"
#include "logits.wgsl"
#include "greedy.wgsl"
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<i32>;
@group(0) @binding(2) var<storage, read> index: array<i32>;
@group(0) @binding(3) var<storage, read> tables: array<i32>;
@group(0) @binding(4) var<storage, read_write> step: array<vec4<i32>>;
@group(0) @binding(5) var<storage, read_write> history: array<i32>;
@group(0) @binding(6) var<storage, read_write> workspace: array<vec2<u32>>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let part = (p.vocab + SPLITS - 1u) / SPLITS;
    let end = min((group.z + 1u) * part, p.vocab);
    var most = 0u;
    var token = NONE;
    for (var i = group.z * part + thread; i < end; i += GROUP) {
        let k = key(group.x, i);
        if (better(k, i, most, token)) {
            most = k;
            token = i;
        }
    }
    best_of_group(most, token, thread);
    if (thread == 0u) { workspace[group.x * SPLITS + group.z] = vec2<u32>(best_key[0], best_token[0]); }
}

@compute @workgroup_size(GROUP)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var found = vec2<u32>(0u, NONE);
    if (thread < SPLITS) { found = workspace[group.x * SPLITS + thread]; }
    best_of_group(found.x, found.y, thread);
    let row = u32(index[group.x]);
    if (thread == 0u && step[row].y >= 0) { advance(row, best_key[0], best_token[0]); }
}
