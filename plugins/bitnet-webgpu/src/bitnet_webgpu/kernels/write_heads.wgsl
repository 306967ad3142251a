// Writes the heads of a workgroup that attended to all positions of its row.

fn write_heads(shares: array<vec2<f32>, TILE_N>, group: vec3<u32>, used: bool, thread: u32) {
    mix(shares, thread);
    for (var i = thread; i < TILE_N * PAIRS; i += GROUP) {
        let h = i / PAIRS;
        let sum = mixed_at(h, i % PAIRS) / weight_sum[h];
        let to = (group.y * p.n_heads + group.x * TILE_N + h) * HEAD_DIM + 2u * (i % PAIRS);
        out[to] = select(0.0, sum.x, used);
        out[to + 1u] = select(0.0, sum.y, used);
    }
}
