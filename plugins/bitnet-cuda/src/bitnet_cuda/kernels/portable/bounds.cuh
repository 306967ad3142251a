// Lengths of rows, and bounds as integers with the same order, for the exact int8 head.
// Returns |x| from its sum of squares, rounded up.
__device__ inline float length_from(float squares) { return sqrtf(squares) * 1.00001f; }

#define NOT_A_NUMBER 0xffffffffu
// Returns an integer with the order of v; NaN is above all numbers.
__device__ inline u32 order_of(float v) {
    u32 bits = v == 0.0f ? 0 : __float_as_uint(v);  // -0 equals 0
    return is_nan(v) ? NOT_A_NUMBER : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float number_of(u32 order) {  // NaN for NOT_A_NUMBER
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}
