// Operands of attention: q f32[rows, n_heads head_dim]; k_cache, v_cache: cache rows; step i32[rows, 4];
// tables i32[sequences, max_blocks]; out f32[rows, n_heads head_dim].
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k_cache: array<u32>;
@group(0) @binding(2) var<storage, read> v_cache: array<u32>;
@group(0) @binding(3) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(4) var<storage, read> tables: array<i32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

fn key_word(row: u32, i: u32, position: u32) -> u32 { return k_cache[row + i]; }
fn value_word(row: u32, i: u32, position: u32) -> u32 { return v_cache[row + i]; }

fn take_queries(group: vec3<u32>, thread: u32) {
    let at = (group.y * p.n_heads + group.x * TILE_N) * HEAD_DIM;
    for (var i = thread; i < TILE_N * PAIRS; i += GROUP) { queries[i] = vec2<f32>(q[at + 2u * i], q[at + 2u * i + 1u]); }
    workgroupBarrier();
}
