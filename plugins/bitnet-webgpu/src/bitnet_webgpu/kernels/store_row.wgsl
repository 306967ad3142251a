// Encodes one head, in `head`, as a cache row. Requires GROUP, cache_rows, numbers and reduce.

var<workgroup> head: array<f32, HEAD_DIM>;

fn head_scale(thread: u32) -> f32 { // absmax, for KV 2
    if (KV != 2u) { return 0.0; }
    var most = 0u;
    for (var d = thread; d < HEAD_DIM; d += GROUP) { most = max(most, size_bits(head[d])); }
    return bitcast<f32>(group_sum_max(0.0, most, thread).most);
}

fn code(d: u32, inverse: f32) -> u32 {
    if (d >= HEAD_DIM) { return 0u; }
    return u32(i32(round(head[d] * inverse))) & 0xffu;
}

fn encoded(i: u32, absmax: f32) -> u32 { // returns word i of the row
    if (KV == 0u) { return bitcast<u32>(head[i]); }
    if (KV == 1u) { return half_bits(head[2u * i]) | (half_bits(head[2u * i + 1u]) << 16u); }
    if (i == 0u) { return bitcast<u32>(absmax / 127.0); }
    var inverse = 0.0;
    if (absmax > 0.0) { inverse = 127.0 / absmax; }
    let d = 4u * (i - 1u);
    return code(d, inverse) | (code(d + 1u, inverse) << 8u) | (code(d + 2u, inverse) << 16u) | (code(d + 3u, inverse) << 24u);
}
