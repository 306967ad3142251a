// Ternary codes times int8 activations, in f32. A word of w holds four columns in each of four planes 32 columns apart;
// plane s is its bits 6 - 2s. The bits are not shifted: code 4^j times q / 4^j is the integer code q, and every step of
// that is exact.
//
// Sums are exact while they are integers below 2^24. |code q| <= 2 * 128 (padding has q = 0), so every partial sum over
// a row of K columns, in any order, is an integer of at most 256 K: below 2^24 for K < 65,536. Signed products, (code -
// 1) q, are at most 128 K. `tuning.MAX_WIDTH` limits rows to this width.
struct Columns {
    float4 planes[4];  // q / 4^(3 - s) of the four columns in each plane
    float4 sums;       // of q, by plane
};

// q: char4s of a row of activations; i: index of the word of a matrix row.
template <class Codes>
inline Columns columns_of(Codes q, uint i) {
    uint at = i / 8 * 32 + i % 8;
    float4 a = float4(char4(q[at])), b = float4(char4(q[at + 8])), c = float4(char4(q[at + 16])), d = float4(char4(q[at + 24]));
    Columns made;
    made.planes[0] = a * 0.015625f;
    made.planes[1] = b * 0.0625f;
    made.planes[2] = c * 0.25f;
    made.planes[3] = d;
    made.sums = float4(a.x + a.y + a.z + a.w, b.x + b.y + b.z + b.w, c.x + c.y + c.z + c.w, d.x + d.y + d.z + d.w);
    return made;
}

inline float plane_dot(uint bits, float4 q) { return dot(float4(as_type<uchar4>(bits)), q); }

inline float4 dots(uint word, thread const Columns &c) {  // of code and q, by plane
    return float4(plane_dot(word & 0xc0c0c0c0u, c.planes[0]), plane_dot(word & 0x30303030u, c.planes[1]),
                  plane_dot(word & 0x0c0c0c0cu, c.planes[2]), plane_dot(word & 0x03030303u, c.planes[3]));
}
