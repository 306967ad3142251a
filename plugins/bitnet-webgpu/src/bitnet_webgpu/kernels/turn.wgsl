// A head of qkv = [q | k | v], normed where QKNORM is 1 and rotated, into `head`: pair j is (j, j + D / 2), or (2j, 2j + 1)
// where INTERLEAVED is 1; (a, b) -> (a cos - b sin, b cos + a sin).

fn head_factor(at: u32, eps: f32, thread: u32) -> f32 { // 1 / sqrt(mean square + eps); NaN where that is not finite
    var sum = 0.0;
    for (var d = thread; d < HEAD_DIM; d += GROUP) { sum += qkv[at + d] * qkv[at + d]; }
    let mean = group_sum(sum, thread) / f32(HEAD_DIM);
    return or_nan(1.0 / sqrt(mean + eps), is_bad(mean));
}

fn gamma_of(d: u32, is_query: bool) -> f32 {
    if (is_query) { return q_gamma[d]; }
    return k_gamma[d];
}

fn turn(at: u32, is_query: bool, position: u32, eps: f32, thread: u32) {
    var factor = 1.0;
    if (QKNORM == 1u) { factor = head_factor(at, eps, thread); }
    for (var j = thread; j < PAIRS; j += GROUP) {
        let first = select(j, 2u * j, INTERLEAVED == 1u);
        let second = select(j + PAIRS, 2u * j + 1u, INTERLEAVED == 1u);
        var a = qkv[at + first];
        var b = qkv[at + second];
        if (QKNORM == 1u) {
            a = a * factor * gamma_of(first, is_query);
            b = b * factor * gamma_of(second, is_query);
        }
        let angle = rope[position * PAIRS + j];
        head[first] = a * angle.x - b * angle.y;
        head[second] = b * angle.x + a * angle.y;
    }
}

fn plain(at: u32, thread: u32) {
    for (var d = thread; d < HEAD_DIM; d += GROUP) { head[d] = qkv[at + d]; }
}
