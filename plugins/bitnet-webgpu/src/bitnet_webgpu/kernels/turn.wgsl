// Elements of a head of qkv = [q | k | v], normed if QKNORM is 1 and rotated: pair j is (j, j + D / 2), or (2j, 2j + 1)
// if INTERLEAVED is 1; (a, b) -> (a cos - b sin, b cos + a sin).

fn head_factor(at: u32, eps: f32, thread: u32) -> f32 { // 1 / sqrt(mean square + eps); NaN if that is not finite
    if (QKNORM == 0u) { return 1.0; }
    var sum = 0.0;
    for (var d = thread; d < HEAD_DIM; d += GROUP) { sum += qkv[at + d] * qkv[at + d]; }
    let mean = group_sum_max(sum, 0u, thread).sum / f32(HEAD_DIM);
    return or_nan(1.0 / sqrt(mean + eps), is_bad(mean));
}

fn gamma_of(d: u32, is_query: bool) -> f32 {
    if (is_query) { return q_gamma[d]; }
    return k_gamma[d];
}

fn turned(at: u32, d: u32, is_query: bool, position: u32, factor: f32) -> f32 { // element d of the head at `at`
    let j = select(d % PAIRS, d / 2u, INTERLEAVED == 1u);
    let first = select(j, 2u * j, INTERLEAVED == 1u);
    let second = select(j + PAIRS, 2u * j + 1u, INTERLEAVED == 1u);
    var a = qkv[at + first];
    var b = qkv[at + second];
    if (QKNORM == 1u) {
        a = a * factor * gamma_of(first, is_query);
        b = b * factor * gamma_of(second, is_query);
    }
    let angle = rope[position * PAIRS + j];
    return select(b * angle.x + a * angle.y, a * angle.x - b * angle.y, d == first);
}
