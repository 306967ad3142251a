// A row into q, scale and qsum; a thread takes four columns, a word of q, at a time.

var<workgroup> sizes: array<f32, GROUP>;
var<workgroup> sums: array<i32, GROUP>;

fn quantize_row(row: u32, thread: u32) {
    let found = row_of(row, p.width, p.eps, thread);
    if (ABLOCK == 0u) { store_row(row, thread, found); } else { store_blocks(row, thread, found); }
}

fn store_row(row: u32, thread: u32, found: Row) {
    var sum = 0;
    for (var i = thread; i < p.stride / 4u; i += GROUP) {
        var codes = vec4<i32>(0);
        if (!found.bad) { codes = codes_of(four(row, 4u * i, p.width, found.factor), 127.0 / found.absmax); }
        q[row * (p.stride / 4u) + i] = word_of(codes);
        sum += sum_of(codes);
    }
    sum = group_sum_exact(sum, thread);
    if (thread == 0u) {
        scale[row] = or_nan(found.absmax / 127.0, found.bad);
        qsum[row] = sum;
    }
}

fn store_blocks(row: u32, thread: u32, found: Row) { // eight threads a block of 32 columns
    let eight = thread / 8u * 8u;
    for (var first = 0u; first < p.stride / 4u; first += GROUP) {
        let i = first + thread;
        let y = four(row, 4u * i, p.width, found.factor);
        let size = abs(y);
        sizes[thread] = max(max(size.x, size.y), max(size.z, size.w));
        workgroupBarrier();
        var absmax = least_absmax();
        for (var j = 0u; j < 8u; j += 1u) { absmax = max(absmax, sizes[eight + j]); }
        var codes = vec4<i32>(0);
        if (!found.bad) { codes = codes_of(y, 127.0 / absmax); }
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
