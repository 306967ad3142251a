// `put` and `put_block` of codes.glsl for products with ternary weights: ordered by the planes of 2-bit codes, so that
// neighbours read neighbouring words. Columns 16 (2 s + h) .. of block b are at [s * PLANE + 2 b + h]; scales and
// halves (see blocks.glsl) of the planes of block b at [b]. POOL: minimum size, if the including kernel uses the memory
// otherwise too.
#ifndef POOL
#define POOL 1
#endif
const bool BLOCKED = BLOCK != 0;
const uint PLANE = MOST_WIDTH / 64 + 2, BLOCKS = BLOCKED ? (MOST_WIDTH + 127) / 128 : 1;
shared uvec4 q_shared[4 * PLANE > POOL ? 4 * PLANE : POOL];
shared vec4 act_scales[BLOCKS], act_halves[BLOCKS];
void put(uint word, uint codes) { q_shared[word / 8 % 4 * PLANE + word / 32 * 2 + word / 4 % 2][word % 4] = codes; }
void put_block(uint block, float scale, int sum) {
    act_scales[block / 4][block % 4] = scale * PLANES[block % 4];
    act_halves[block / 4][block % 4] = 0.5 * scale * float(sum);
}
