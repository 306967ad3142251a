// The maximum over the ABLOCK columns around those of a thread.

var<workgroup> sizes: array<u32, GROUP>;

fn block_bits(own: u32, columns: u32, thread: u32) -> u32 { // the maximum of ABLOCK columns, `columns` per thread
    let threads = max(ABLOCK, 32u) / columns;
    sizes[thread] = own;
    workgroupBarrier(); // the caller needs another one before the next call
    var most = 0u;
    for (var i = 0u; i < threads; i += 1u) { most = max(most, sizes[thread / threads * threads + i]); }
    return most;
}
