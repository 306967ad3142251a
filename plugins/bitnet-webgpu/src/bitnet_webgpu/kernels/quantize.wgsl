// Rows of x(row, k), normed where NORM is 1, to codes of absmax quantization (conventions in the catalogue's head).
// x(row, k) gives f32 for k < columns; gamma is bound where NORM is 1.

fn least_absmax() -> f32 {
    if (ABLOCK == 32u) { return 1e-20; }
    return 1e-5;
}

struct Row { factor: f32, absmax: f32, bad: bool }

fn normed(row: u32, k: u32, columns: u32, factor: f32) -> f32 {
    if (k >= columns) { return 0.0; }
    let y = value(row, k);
    if (NORM == 1u) { return y * factor * gamma[k]; }
    return y;
}

fn row_of(row: u32, columns: u32, eps: f32, thread: u32) -> Row {
    var found = Row(1.0, 0.0, false);
    if (NORM == 1u) {
        var sum = 0.0;
        for (var k = thread; k < columns; k += GROUP) {
            let y = value(row, k);
            sum += y * y;
        }
        let mean = group_sum(sum, thread) / f32(columns);
        found.factor = 1.0 / sqrt(mean + eps);
        found.bad = is_bad(mean);
    }
    var most = 0u;
    for (var k = thread; k < columns; k += GROUP) { most = max(most, size_bits(normed(row, k, columns, found.factor))); }
    most = group_max_bits(most, thread);
    found.bad = found.bad || most >= INF_BITS;
    found.absmax = max(bitcast<f32>(most), least_absmax());
    return found;
}

fn four(row: u32, first: u32, columns: u32, factor: f32) -> vec4<f32> {
    return vec4<f32>(normed(row, first, columns, factor), normed(row, first + 1u, columns, factor),
                     normed(row, first + 2u, columns, factor), normed(row, first + 3u, columns, factor));
}

fn codes_of(y: vec4<f32>, inverse: f32) -> vec4<i32> {
    return vec4<i32>(clamp(round(y * inverse), vec4<f32>(-128.0), vec4<f32>(127.0)));
}

fn word_of(c: vec4<i32>) -> u32 {
    let u = bitcast<vec4<u32>>(c) & vec4<u32>(0xffu);
    return u.x | (u.y << 8u) | (u.z << 16u) | (u.w << 24u);
}

fn sum_of(c: vec4<i32>) -> i32 { return c.x + c.y + c.z + c.w; }
