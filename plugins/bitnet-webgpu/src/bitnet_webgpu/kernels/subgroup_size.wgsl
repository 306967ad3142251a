// Threads of a subgroup where consecutive threads form one: the least found[t], which is 0 where thread t is not where it
// would be then.
@group(0) @binding(0) var<storage, read_write> found: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
    found[thread] = select(0u, size, thread % size == lane);
}
