// Loads the queries of a workgroup's heads.

fn take_queries(group: vec3<u32>, thread: u32) {
    let at = (group.y * p.n_heads + group.x * TILE_N) * HEAD_DIM;
    for (var i = thread; i < TILE_N * PAIRS; i += GROUP) { queries[i] = vec2<f32>(q[at + 2u * i], q[at + 2u * i + 1u]); }
    workgroupBarrier();
}
