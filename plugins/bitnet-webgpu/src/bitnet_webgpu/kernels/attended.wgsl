// What a workgroup attended to, into out; or, where SPLITS groups share the positions, into the workspace, from which
// `merge_row` makes out. workspace f32[rows, n_heads, SPLITS, HEAD_DIM + 2]: largest score, sum of weights, values.

fn part_at(row: u32, h: u32, split: u32) -> u32 {
    return ((row * p.n_heads + h) * SPLITS + split) * (HEAD_DIM + 2u);
}

fn keep(shares: array<vec2<f32>, TILE_N>, group: vec3<u32>, thread: u32) {
    var mine = shares;
    for (var i = 0u; i < TILE_N; i += 1u) {
        let sum = over_slices(mine[i], thread);
        let at = part_at(group.y, group.x * TILE_N + i, group.z);
        if (thread < PAIRS) {
            workspace[at + 2u + 2u * thread] = sum.x;
            workspace[at + 3u + 2u * thread] = sum.y;
        }
        if (thread == 0u) {
            workspace[at] = largest[i];
            workspace[at + 1u] = weight_sum[i];
        }
    }
}

fn merge_row(group: vec3<u32>, used: bool, thread: u32) {
    for (var i = 0u; i < TILE_N; i += 1u) {
        let h = group.x * TILE_N + i;
        var most = LOW;
        for (var s = 0u; s < SPLITS; s += 1u) { most = max(most, workspace[part_at(group.y, h, s)]); }
        var total = 0.0;
        for (var s = 0u; s < SPLITS; s += 1u) {
            let at = part_at(group.y, h, s);
            total += workspace[at + 1u] * exp(workspace[at] - most);
        }
        for (var d = thread; d < HEAD_DIM; d += GROUP) {
            var sum = 0.0;
            for (var s = 0u; s < SPLITS; s += 1u) {
                let at = part_at(group.y, h, s);
                sum += workspace[at + 2u + d] * exp(workspace[at] - most);
            }
            out[(group.y * p.n_heads + h) * HEAD_DIM + d] = select(0.0, sum / total, used);
        }
    }
}

fn share_of(length: u32, split: u32) -> vec2<u32> { // begin and end
    let each = (length + SPLITS * CHUNK - 1u) / (SPLITS * CHUNK) * CHUNK;
    return min(vec2<u32>(split, split + 1u) * each, vec2<u32>(length));
}
