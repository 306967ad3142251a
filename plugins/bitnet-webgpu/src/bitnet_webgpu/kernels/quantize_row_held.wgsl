// Writes a row of WIDTH columns, a multiple of four, to q, scale and qsum with one scale; each thread holds every
// GROUP-th vec4 of the row. value(row, i) returns vec4 i.

const FOURS = WIDTH / 4u;
const WORDS = (WIDTH + 127u) / 128u * 32u; // of q
const EACH = (WORDS + GROUP - 1u) / GROUP;

fn quantize_row(row: u32, thread: u32) {
    var held: array<vec4<f32>, EACH>;
    var squares = 0.0;
    var most = 0u;
    for (var j = 0u; j < EACH; j += 1u) {
        let i = thread + j * GROUP;
        if (i < FOURS) { held[j] = value(row, i); }
    }
    for (var j = 0u; j < EACH; j += 1u) {
        let i = thread + j * GROUP;
        if (NORM == 1u && i < FOURS) {
            squares += dot(held[j], held[j]);
            held[j] *= gamma[i];
        }
        most = max(most, largest_bits(held[j]));
    }
    let found = row_of(squares, most, WIDTH, p.eps, thread);
    var sum = 0;
    for (var j = 0u; j < EACH; j += 1u) {
        let i = thread + j * GROUP;
        if (i < WORDS) {
            let codes = codes_of(held[j], found, found.absmax);
            q[row * WORDS + i] = word_of(codes);
            sum += sum_of(codes);
        }
    }
    sum = group_sum_exact(sum, thread);
    if (thread == 0u) {
        scale[row] = or_nan(found.absmax / 127.0, found.bad);
        qsum[row] = sum;
    }
}
