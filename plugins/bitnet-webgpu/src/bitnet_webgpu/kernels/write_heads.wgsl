// A workgroup that attended to all positions of its row writes its heads of out itself.

fn write_heads(shares: array<vec2<f32>, TILE_N>, group: vec3<u32>, used: bool, thread: u32) {
    var mine = shares;
    for (var i = 0u; i < TILE_N; i += 1u) {
        let sum = over_slices(mine[i], thread);
        let to = (group.y * p.n_heads + group.x * TILE_N + i) * HEAD_DIM + 2u * thread;
        if (thread < PAIRS) {
            out[to] = select(0.0, sum.x / weight_sum[i], used);
            out[to + 1u] = select(0.0, sum.y / weight_sum[i], used);
        }
    }
}
