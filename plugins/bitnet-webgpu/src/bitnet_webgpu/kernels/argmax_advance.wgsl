// Greedy sampling: the lowest index of the largest allowed logit of each row r = index[l] is written to step and
// history, and the row advances by one position. One workgroup per row.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)]; index i32[rows]; tables i32[sequences, max_blocks]; step
// i32[*, 4]; history i32[*, ring + 1].
#include "numbers.wgsl"
#include "logits.wgsl"
#include "greedy.wgsl"
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> mask: array<i32>;
@group(0) @binding(2) var<storage, read> index: array<i32>;
@group(0) @binding(3) var<storage, read> tables: array<i32>;
@group(0) @binding(4) var<storage, read_write> step: array<vec4<i32>>;
@group(0) @binding(5) var<storage, read_write> history: array<i32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var most = 0u;
    var token = NONE;
    for (var i = thread; i < p.vocab; i += GROUP) {
        let k = key(group.x, i);
        if (better(k, i, most, token)) {
            most = k;
            token = i;
        }
    }
    best_of_group(most, token, thread);
    let row = u32(index[group.x]);
    if (thread == 0u && step[row].y >= 0) { advance(row, best_key[0], best_token[0]); }
}
