// Converts exact dot products of the four planes of a block (or half of it) to f32 if scales differ within a row.
// weight_scale(out, i) and activation_scale(row, i) are the i-th scales of a matrix row and of a row of activations.

const SPAN = max(BLOCK, 1u); // columns of a weight scale

fn scaled(dots: vec4<i32>, row: u32, out: u32, block: u32) -> f32 {
    if (ABLOCK != 0u) {
        var sum = 0.0;
        for (var s = 0u; s < 4u; s += 1u) {
            let i = 4u * block + s;
            sum += weight_scale(out, i * 32u / SPAN) * activation_scale(row, i) * f32(dots[s]);
        }
        return sum;
    }
    if (BLOCK == 64u) {
        return weight_scale(out, 2u * block) * f32(dots.x + dots.y) + weight_scale(out, 2u * block + 1u) * f32(dots.z + dots.w);
    }
    return weight_scale(out, block * 128u / SPAN) * f32(dots.x + dots.y + dots.z + dots.w);
}
