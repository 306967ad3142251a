// `reduce` if SUBGROUPS or more neighbours form a subgroup: these exchange values in registers, and only one in
// SUBGROUPS threads needs workgroup memory. Neighbours are SUBGROUPS consecutive threads; a larger subgroup holds
// several sets.

const NEAR = SUBGROUPS;
const SETS = GROUP / SUBGROUPS;

struct Found { sum: f32, most: u32 }

var<workgroup> gathered: array<vec2<u32>, SETS>;
var<workgroup> gathered_exact: array<i32, SETS>;

fn near_sum(value: f32, lanes: u32) -> f32 { // over `lanes` neighbours (a power of two), at most NEAR
    var sum = value;
    for (var d = 1u; d < min(lanes, NEAR); d <<= 1u) { sum += subgroupShuffleXor(sum, d); }
    return sum;
}

fn near_sum_exact(value: i32, lanes: u32) -> i32 {
    var sum = value;
    for (var d = 1u; d < min(lanes, NEAR); d <<= 1u) { sum += subgroupShuffleXor(sum, d); }
    return sum;
}

fn near_max(value: u32) -> u32 {
    var most = value;
    for (var d = 1u; d < NEAR; d <<= 1u) { most = max(most, subgroupShuffleXor(most, d)); }
    return most;
}

fn group_sum_max(value: f32, most: u32, thread: u32) -> Found {
    let near = vec2<u32>(bitcast<u32>(near_sum(value, NEAR)), near_max(most));
    workgroupBarrier(); // wait until the last call's results have been read
    if (thread % NEAR == 0u) { gathered[thread / NEAR] = near; }
    workgroupBarrier();
    var found = Found(0.0, 0u);
    for (var i = 0u; i < SETS; i += 1u) {
        found = Found(found.sum + bitcast<f32>(gathered[i].x), max(found.most, gathered[i].y));
    }
    return found;
}

fn group_sum_exact(value: i32, thread: u32) -> i32 {
    let near = near_sum_exact(value, NEAR);
    workgroupBarrier();
    if (thread % NEAR == 0u) { gathered_exact[thread / NEAR] = near; }
    workgroupBarrier();
    var sum = 0;
    for (var i = 0u; i < SETS; i += 1u) { sum += gathered_exact[i]; }
    return sum;
}
