// Sums and maxima over a workgroup of GROUP threads, a multiple of 16; every thread gets the result.

var<workgroup> reduced: array<u32, GROUP>;
var<workgroup> gathered: array<u32, 16>;

fn group_sum(value: f32, thread: u32) -> f32 {
    reduced[thread] = bitcast<u32>(value);
    workgroupBarrier();
    if (thread < 16u) {
        var sum = 0.0;
        for (var i = thread; i < GROUP; i += 16u) { sum += bitcast<f32>(reduced[i]); }
        gathered[thread] = bitcast<u32>(sum);
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < 16u; i += 1u) { total += bitcast<f32>(gathered[i]); }
    return total;
}

fn group_sum_exact(value: i32, thread: u32) -> i32 {
    reduced[thread] = bitcast<u32>(value);
    workgroupBarrier();
    if (thread < 16u) {
        var sum = 0u;
        for (var i = thread; i < GROUP; i += 16u) { sum += reduced[i]; }
        gathered[thread] = sum;
    }
    workgroupBarrier();
    var total = 0u;
    for (var i = 0u; i < 16u; i += 1u) { total += gathered[i]; }
    return bitcast<i32>(total);
}

fn group_max_bits(value: u32, thread: u32) -> u32 {
    reduced[thread] = value;
    workgroupBarrier();
    if (thread < 16u) {
        var most = 0u;
        for (var i = thread; i < GROUP; i += 16u) { most = max(most, reduced[i]); }
        gathered[thread] = most;
    }
    workgroupBarrier();
    var largest = 0u;
    for (var i = 0u; i < 16u; i += 1u) { largest = max(largest, gathered[i]); }
    return largest;
}
