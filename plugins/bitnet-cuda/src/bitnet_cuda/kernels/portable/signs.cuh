// Weights as signed bytes for block scales. Plane s of a word of codes (see the catalogue) becomes four signed bytes,
// -64 (code - 1), in two operations; sums of these with activations need no qsum. SIGN divides the factor -64 out of
// the sum.
#define SIGN (-1.0f / 64.0f)

__device__ inline u32 signs(u32 word, int s) { return ((word << 2 * s) & 0xc0c0c0c0u) ^ 0x40404040u; }
