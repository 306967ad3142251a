// `put` of codes.glsl for products with ternary weights: by the plane of a weight's 2-bit fields, so that neighbours read
// neighbouring words. Columns 16 (2 s + h) .. of block b are at [s * PLANE + 2 b + h].
const uint PLANE = MOST_WIDTH / 64 + 2;
shared uvec4 q_shared[4 * PLANE];
void put(uint word, uint codes) { q_shared[word / 8 % 4 * PLANE + word / 32 * 2 + word / 4 % 2][word % 4] = codes; }
