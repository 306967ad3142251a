// y = w . q for TILE_T rows of activations and TILE_N = GROUP / LANES matrix rows per workgroup: LANES threads share a
// matrix row, each takes every LANES-th vec4 of its codes.

var<workgroup> shares: array<f32, GROUP * TILE_T>;
var<workgroup> exact: array<i32, GROUP * TILE_T>;

fn weight_scale(out: u32, i: u32) -> f32 { return wscale[out * ((p.width + SPAN - 1u) / SPAN) + i]; }
fn activation_scale(row: u32, i: u32) -> f32 { return scale[row * (p.width / 32u) + i]; }

fn few(group: vec3<u32>, thread: u32) {
    let out = group.x * TILE_N + thread / LANES;
    let first = group.y * TILE_T;
    let vectors = p.width / 64u;
    var sums: array<i32, TILE_T>;
    var values: array<f32, TILE_T>;
    if (out < p.outs) {
        for (var i = thread % LANES; i < vectors; i += LANES) {
            let codes = w[out * vectors + i];
            let c0 = signs(plane(codes, 0u));
            let c1 = signs(plane(codes, 1u));
            let c2 = signs(plane(codes, 2u));
            let c3 = signs(plane(codes, 3u));
            for (var t = 0u; t < TILE_T; t += 1u) {
                let row = min(first + t, p.rows - 1u);
                let at = row * (p.width / 16u) + i / 2u * 8u + i % 2u;
                let dots = vec4<i32>(dot16(c0, q[at]), dot16(c1, q[at + 2u]), dot16(c2, q[at + 4u]), dot16(c3, q[at + 6u]));
                if (BLOCK == 0u) {
                    sums[t] += dots.x + dots.y + dots.z + dots.w;
                } else {
                    values[t] += scaled(dots, row, out, i / 2u);
                }
            }
        }
    }
    for (var t = 0u; t < TILE_T; t += 1u) {
        exact[t * GROUP + thread] = sums[t];
        shares[t * GROUP + thread] = values[t];
    }
    workgroupBarrier();
    for (var i = thread; i < TILE_N * TILE_T; i += GROUP) { finish(group.x * TILE_N + i % TILE_N, first + i / TILE_N, i); }
}

fn finish(out: u32, row: u32, i: u32) {
    if (out >= p.outs || row >= p.rows) { return; }
    let at = i / TILE_N * GROUP + i % TILE_N * LANES;
    var sum = 0;
    var value = 0.0;
    for (var lane = 0u; lane < LANES; lane += 1u) {
        sum += exact[at + lane];
        value += shares[at + lane];
    }
    if (BLOCK == 0u) {
        store(row, out, f32(sum) * scale[row] * wscale[out]);
    } else if (ABLOCK == 0u) {
        store(row, out, value * scale[row]);
    } else {
        store(row, out, value);
    }
}
