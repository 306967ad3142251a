// y = w . q in tiles of TILE_T rows of activations by TILE_N = 64 matrix rows, 64 columns (half of a block) at a time.
// Codes are unpacked once into workgroup memory; a thread keeps 4 or 8 by 4 sums: GROUP is 256 for tiles of 64 (by 4)
// and of 128 rows, or 128 for tiles of 64 (by 8). Four neighbours load the planes of one row, which are near each other
// in memory. In workgroup memory planes are two vec4 apart from a power of two, so that the four store to different
// banks.

const SPAN = max(BLOCK, 1u); // columns of a weight scale
const APART = GROUP / 16u; // distance of a thread's rows
const EIGHT = TILE_T == 8u * APART; // rows of a thread; otherwise four
const MORE_W = GROUP < 256u; // a thread loads two of 256 vec4
const MORE_Q = 4u * TILE_T > GROUP; // and two of 4 TILE_T vec4

const STRIDE_W = 66u;
const STRIDE_Q = TILE_T + 2u;

var<workgroup> tile_w: array<vec4<u32>, 4u * STRIDE_W>; // [plane][matrix row]
var<workgroup> tile_q: array<vec4<u32>, 4u * STRIDE_Q>; // [plane][row]

fn weight_scale(out: u32, i: u32) -> f32 {
    return wscale[min(out, p.outs - 1u) * ((p.width + SPAN - 1u) / SPAN) + i];
}
fn activation_scale(row: u32, i: u32) -> f32 { return scale[min(row, p.rows - 1u) * (p.width / 32u) + i]; }

fn load_w(first: u32, i: u32, half: u32) -> vec4<u32> {
    let out = min(first + i / 4u, p.outs - 1u);
    return w[out * (p.width / 64u) + half];
}

fn load_q(first: u32, i: u32, half: u32) -> vec4<u32> {
    let row = min(first + i / 4u, p.rows - 1u);
    return q[row * (p.width / 16u) + half / 2u * 8u + half % 2u + 2u * (i % 4u)];
}

fn plus_dots(sums: vec4<i32>, w0: vec4<u32>, w1: vec4<u32>, w2: vec4<u32>, w3: vec4<u32>, a: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(plus_dot16(sums.x, w0, a), plus_dot16(sums.y, w1, a), plus_dot16(sums.z, w2, a),
                     plus_dot16(sums.w, w3, a));
}

fn by_scale(sums: vec4<i32>, scales: vec4<f32>, row: u32, column: u32) -> vec4<f32> {
    if (ABLOCK != 0u) { return scales * vec4<f32>(sums) * activation_scale(row, column / 32u); }
    return scales * vec4<f32>(sums);
}

fn write_row(sums: vec4<i32>, values: vec4<f32>, row: u32, out: u32) {
    if (row >= p.rows) { return; }
    for (var i = 0u; i < 4u; i += 1u) {
        let n = out + 16u * i;
        if (n < p.outs) {
            if (BLOCK == 0u) {
                store(row, n, f32(sums[i]) * scale[row] * wscale[n]);
            } else {
                store(row, n, values[i] * select(1.0, scale[min(row, p.rows - 1u)], ABLOCK == 0u));
            }
        }
    }
}

// Sums are named instead of in an array: not every compiler keeps an array in registers.
fn tiled(group: vec3<u32>, thread: u32) {
    let t = thread / 16u;
    let n = thread % 16u;
    let outs = group.x * 64u;
    let rows = group.y * TILE_T;
    let halves = p.width / 64u;
    var s0 = vec4<i32>(0); var s1 = s0; var s2 = s0; var s3 = s0; var s4 = s0; var s5 = s0; var s6 = s0; var s7 = s0;
    var v0 = vec4<f32>(0.0); var v1 = v0; var v2 = v0; var v3 = v0; var v4 = v0; var v5 = v0; var v6 = v0; var v7 = v0;
    let at_w = thread % 4u * STRIDE_W + thread / 4u;
    let at_q = thread % 4u * STRIDE_Q + thread / 4u;
    var next_w = load_w(outs, thread, 0u);
    var next_q = load_q(rows, thread, 0u);
    var more_w = load_w(outs, thread + GROUP, 0u);
    var more_q = load_q(rows, thread + GROUP, 0u);
    for (var half = 0u; half < halves; half += 1u) {
        workgroupBarrier();
        tile_w[at_w] = signs(plane(next_w, thread % 4u));
        tile_q[at_q] = next_q;
        if (MORE_W) { tile_w[at_w + GROUP / 4u] = signs(plane(more_w, thread % 4u)); }
        if (MORE_Q) { tile_q[at_q + GROUP / 4u] = more_q; }
        workgroupBarrier();
        let following = min(half + 1u, halves - 1u);
        next_w = load_w(outs, thread, following);
        next_q = load_q(rows, thread, following);
        if (MORE_W) { more_w = load_w(outs, thread + GROUP, following); }
        if (MORE_Q) { more_q = load_q(rows, thread + GROUP, following); }
        for (var s = 0u; s < 4u; s += 1u) {
            let w0 = tile_w[s * STRIDE_W + n];
            let w1 = tile_w[s * STRIDE_W + n + 16u];
            let w2 = tile_w[s * STRIDE_W + n + 32u];
            let w3 = tile_w[s * STRIDE_W + n + 48u];
            let q0 = s * STRIDE_Q + t;
            s0 = plus_dots(s0, w0, w1, w2, w3, tile_q[q0]);
            s1 = plus_dots(s1, w0, w1, w2, w3, tile_q[q0 + APART]);
            s2 = plus_dots(s2, w0, w1, w2, w3, tile_q[q0 + 2u * APART]);
            s3 = plus_dots(s3, w0, w1, w2, w3, tile_q[q0 + 3u * APART]);
            if (EIGHT) {
                s4 = plus_dots(s4, w0, w1, w2, w3, tile_q[q0 + 4u * APART]);
                s5 = plus_dots(s5, w0, w1, w2, w3, tile_q[q0 + 5u * APART]);
                s6 = plus_dots(s6, w0, w1, w2, w3, tile_q[q0 + 6u * APART]);
                s7 = plus_dots(s7, w0, w1, w2, w3, tile_q[q0 + 7u * APART]);
            }
            if (BLOCK != 0u && (ABLOCK != 0u || s == 3u || (BLOCK == 64u && s == 1u))) {
                let column = half / 2u * 128u + s * 32u;
                let b = column / SPAN;
                let scales = vec4<f32>(weight_scale(outs + n, b), weight_scale(outs + n + 16u, b),
                                       weight_scale(outs + n + 32u, b), weight_scale(outs + n + 48u, b));
                let row = rows + t;
                v0 += by_scale(s0, scales, row, column); s0 = vec4<i32>(0);
                v1 += by_scale(s1, scales, row + APART, column); s1 = vec4<i32>(0);
                v2 += by_scale(s2, scales, row + 2u * APART, column); s2 = vec4<i32>(0);
                v3 += by_scale(s3, scales, row + 3u * APART, column); s3 = vec4<i32>(0);
                if (EIGHT) {
                    v4 += by_scale(s4, scales, row + 4u * APART, column); s4 = vec4<i32>(0);
                    v5 += by_scale(s5, scales, row + 5u * APART, column); s5 = vec4<i32>(0);
                    v6 += by_scale(s6, scales, row + 6u * APART, column); s6 = vec4<i32>(0);
                    v7 += by_scale(s7, scales, row + 7u * APART, column); s7 = vec4<i32>(0);
                }
            }
        }
    }
    let row = rows + t;
    let out = outs + n;
    write_row(s0, v0, row, out);
    write_row(s1, v1, row + APART, out);
    write_row(s2, v2, row + 2u * APART, out);
    write_row(s3, v3, row + 3u * APART, out);
    if (EIGHT) {
        write_row(s4, v4, row + 4u * APART, out);
        write_row(s5, v5, row + 5u * APART, out);
        write_row(s6, v6, row + 6u * APART, out);
        write_row(s7, v7, row + 7u * APART, out);
    }
}
