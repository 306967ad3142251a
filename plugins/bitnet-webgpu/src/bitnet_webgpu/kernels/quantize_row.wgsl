// Writes a row to q, scale and qsum; a thread quantizes four columns, a word of q, at a time. value(row, k) returns f32
// for k < p.width.

var<workgroup> sums: array<i32, GROUP>;

fn value_or_zero(row: u32, k: u32) -> f32 { // zero past the end
    if (k >= p.width) { return 0.0; }
    return value(row, k);
}

fn four(row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(value_or_zero(row, k), value_or_zero(row, k + 1u), value_or_zero(row, k + 2u), value_or_zero(row, k + 3u));
}

fn with_gamma(y: vec4<f32>, first: u32) -> vec4<f32> {
    if (NORM == 0u) { return y; }
    let k = min(vec4<u32>(first, first + 1u, first + 2u, first + 3u), vec4<u32>(p.width - 1u));
    return y * vec4<f32>(gamma[k.x], gamma[k.y], gamma[k.z], gamma[k.w]);
}

fn quantize_row(row: u32, thread: u32) {
    var squares = 0.0;
    var most = 0u;
    for (var k = 4u * thread; k < p.width; k += 4u * GROUP) {
        let y = four(row, k);
        if (NORM == 1u) { squares += dot(y, y); }
        most = max(most, largest_bits(with_gamma(y, k)));
    }
    let found = row_of(squares, most, p.width, p.eps, thread);
    if (ABLOCK == 0u) { store_row(row, thread, found); } else { store_blocks(row, thread, found); }
}

fn store_row(row: u32, thread: u32, found: Row) {
    var sum = 0;
    for (var i = thread; i < p.stride / 4u; i += GROUP) {
        let codes = codes_of(with_gamma(four(row, 4u * i), 4u * i), found, found.absmax);
        q[row * (p.stride / 4u) + i] = word_of(codes);
        sum += sum_of(codes);
    }
    sum = group_sum_exact(sum, thread);
    if (thread == 0u) {
        scale[row] = or_nan(found.absmax / 127.0, found.bad);
        qsum[row] = sum;
    }
}

fn store_blocks(row: u32, thread: u32, found: Row) { // eight threads have 32 columns
    let eight = thread / 8u * 8u;
    for (var first = 0u; first < p.stride / 4u; first += GROUP) {
        let i = first + thread;
        let z = with_gamma(four(row, 4u * i), 4u * i);
        let absmax = absmax_of(block_bits(largest_bits(z), 4u, thread), found.factor);
        let codes = codes_of(z, found, absmax);
        sums[thread] = sum_of(codes);
        workgroupBarrier();
        if (i < p.stride / 4u) {
            q[row * (p.stride / 4u) + i] = word_of(codes);
            if (thread == eight) {
                var sum = 0;
                for (var j = 0u; j < 8u; j += 1u) { sum += sums[eight + j]; }
                scale[row * (p.stride / 32u) + i / 8u] = or_nan(absmax / 127.0, found.bad);
                qsum[row * (p.stride / 32u) + i / 8u] = sum;
            }
        }
    }
}
