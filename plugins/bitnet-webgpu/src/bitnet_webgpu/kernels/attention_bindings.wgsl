// Operands of attention: q f32[rows, n_heads head_dim]; k_cache, v_cache: cache rows; step i32[rows, 4];
// tables i32[sequences, max_blocks]; out f32[rows, n_heads head_dim].
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k_cache: array<u32>;
@group(0) @binding(2) var<storage, read> v_cache: array<u32>;
@group(0) @binding(3) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(4) var<storage, read> tables: array<i32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

fn key_now(words: vec3<u32>, j: u32, position: u32) -> vec3<u32> { return words; }
fn value_now(words: vec3<u32>, j: u32, position: u32) -> vec3<u32> { return words; }
