// Sums and maxima over a workgroup of GROUP threads, a multiple of 16, through its memory; every thread gets the result.
// The fallback of `reduce_subgroups` without subgroups: a thread has no neighbours to exchange values with.

const NEAR = 1u;

struct Found { sum: f32, most: u32 }

var<workgroup> reduced: array<vec2<u32>, GROUP>;
var<workgroup> gathered: array<vec2<u32>, 16>;

fn near_sum(value: f32, lanes: u32) -> f32 { return value; }
fn near_sum_exact(value: i32, lanes: u32) -> i32 { return value; }

fn group_sum_max(value: f32, most: u32, thread: u32) -> Found {
    reduced[thread] = vec2<u32>(bitcast<u32>(value), most);
    workgroupBarrier();
    if (thread < 16u) {
        var found = Found(0.0, 0u);
        for (var i = thread; i < GROUP; i += 16u) { found = both(found, reduced[i]); }
        gathered[thread] = vec2<u32>(bitcast<u32>(found.sum), found.most);
    }
    workgroupBarrier();
    var found = Found(0.0, 0u);
    for (var i = 0u; i < 16u; i += 1u) { found = both(found, gathered[i]); }
    return found;
}

fn both(found: Found, other: vec2<u32>) -> Found {
    return Found(found.sum + bitcast<f32>(other.x), max(found.most, other.y));
}

fn group_sum_exact(value: i32, thread: u32) -> i32 {
    reduced[thread].x = bitcast<u32>(value);
    workgroupBarrier();
    if (thread < 16u) {
        var sum = 0u;
        for (var i = thread; i < GROUP; i += 16u) { sum += reduced[i].x; }
        gathered[thread].x = sum;
    }
    workgroupBarrier();
    var total = 0u;
    for (var i = 0u; i < 16u; i += 1u) { total += gathered[i].x; }
    return bitcast<i32>(total);
}
