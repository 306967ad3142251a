// Absmax quantization of rows, normed if NORM is 1 (conventions in `bitnet kernels all`). With z = x gamma and m =
// max|z| the codes are round(z 127 / m), unless the minimum absmax applies: so there is one reduction, of the sum of
// squares and m, and the square root is only a factor. A NaN or Inf makes one of the two not finite too.
#include "four_columns.wgsl"
#include "block_maximum.wgsl"

struct Row { factor: f32, absmax: f32, bad: bool } // absmax: of the normed row

fn row_of(squares: f32, most: u32, columns: u32, eps: f32, thread: u32) -> Row { // squares is 0 if NORM is 0
    let found = group_sum_max(squares, most, thread);
    let mean = found.sum / f32(columns);
    let factor = select(1.0, 1.0 / sqrt(mean + eps), NORM == 1u);
    return Row(factor, absmax_of(found.most, factor), is_bad(mean) || found.most >= INF_BITS);
}

fn absmax_of(most: u32, factor: f32) -> f32 {
    return max(bitcast<f32>(most) * factor, select(1e-5, 1e-20, ABLOCK != 0u));
}

fn codes_of(z: vec4<f32>, found: Row, absmax: f32) -> vec4<i32> {
    if (found.bad) { return vec4<i32>(0); }
    return vec4<i32>(clamp(round(z * (found.factor * (127.0 / absmax))), vec4<f32>(-128.0), vec4<f32>(127.0)));
}
