// If SPLITS workgroups share the positions of a row: each stores its partial result in the workspace, and `merge_head`,
// with one workgroup per head, combines them to out. workspace f32[rows, n_heads, SPLITS, HEAD_DIM + 2]: largest score,
// sum of weights, values.

fn part_at(row: u32, h: u32, split: u32) -> u32 {
    return ((row * p.n_heads + h) * SPLITS + split) * (HEAD_DIM + 2u);
}

fn keep(shares: array<vec2<f32>, TILE_N>, group: vec3<u32>, thread: u32) {
    mix(shares, thread);
    for (var i = thread; i < TILE_N * PAIRS; i += GROUP) {
        let at = part_at(group.y, group.x * TILE_N + i / PAIRS, group.z) + 2u + 2u * (i % PAIRS);
        let sum = mixed_at(i / PAIRS, i % PAIRS);
        workspace[at] = sum.x;
        workspace[at + 1u] = sum.y;
    }
    if (thread < TILE_N) {
        let at = part_at(group.y, group.x * TILE_N + thread, group.z);
        workspace[at] = largest[thread];
        workspace[at + 1u] = weight_sum[thread];
    }
}

fn merge_head(group: vec3<u32>, used: bool, thread: u32) { // group.z: index among the TILE_N heads
    let h = group.x * TILE_N + group.z;
    let first = part_at(group.y, h, 0u);
    for (var d = thread; d < HEAD_DIM; d += GROUP) {
        var scores: array<f32, SPLITS>; // all loads are in flight together
        var totals: array<f32, SPLITS>;
        var values: array<f32, SPLITS>;
        for (var s = 0u; s < SPLITS; s += 1u) {
            scores[s] = workspace[first + s * (HEAD_DIM + 2u)];
            totals[s] = workspace[first + s * (HEAD_DIM + 2u) + 1u];
            values[s] = workspace[first + s * (HEAD_DIM + 2u) + 2u + d];
        }
        var most = LOW;
        for (var s = 0u; s < SPLITS; s += 1u) { most = max(most, scores[s]); }
        var total = 0.0;
        var sum = 0.0;
        for (var s = 0u; s < SPLITS; s += 1u) {
            let weight = exp(scores[s] - most);
            total += totals[s] * weight;
            sum += values[s] * weight;
        }
        out[(group.y * p.n_heads + h) * HEAD_DIM + d] = select(0.0, sum / total, used);
    }
}

fn share_of(length: u32, split: u32) -> vec2<u32> { // returns begin and end
    let each = (length + SPLITS * CHUNK - 1u) / (SPLITS * CHUNK) * CHUNK;
    return min(vec2<u32>(split, split + 1u) * each, vec2<u32>(length));
}
