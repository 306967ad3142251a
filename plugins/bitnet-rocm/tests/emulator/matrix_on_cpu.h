// Matrix cores, element by element, by the layouts of AMD's ISA manuals (CDNA3: "Matrix Arithmetic Instructions", RDNA3 and
// RDNA4: "Wave Matrix Multiply Accumulate"). d[i][j] = c[i][j] + sum over k of a[i][k] b[k][j], signed bytes.
#pragma once
#include "simt.h"

typedef int FourSums __attribute__((ext_vector_type(4)));
typedef int EightSums __attribute__((ext_vector_type(8)));

// What all lanes of the wave brought, bytes of each.
template <unsigned BYTES>
struct Brought {
    signed char of[64][BYTES];

    explicit Brought(const void* mine) {
        for (unsigned at = 0; at < BYTES; at += 8) {
            uint64_t part = 0;
            memcpy(&part, (const char*)mine + at, BYTES < 8 ? BYTES : 8);
            const uint64_t* all = WAVE == 64 ? simt::meet_wave(part) : simt::meet(part);
            for (unsigned lane = 0; lane < WAVE; lane++) memcpy(of[lane] + at, all + lane, BYTES < 8 ? BYTES : 8);
        }
    }
};

// MFMA 16x16x(4 BYTES): lane l has a[l % 16][k] and b[k][l % 16] for k = BYTES (l / 16) and on, and d[4 (l / 16) + r][l % 16] in
// element r.
template <class Operand>
FourSums emulated_mfma(Operand a, Operand b, FourSums c) {
    constexpr unsigned BYTES = sizeof(Operand);
    Brought<BYTES> of_a(&a), of_b(&b);
    unsigned lane = emulated_lane();
    for (unsigned r = 0; r < 4; r++)
        for (unsigned k = 0; k < 4 * BYTES; k++)
            c[r] += of_a.of[k / BYTES * 16 + lane / 16 * 4 + r][k % BYTES] * of_b.of[k / BYTES * 16 + lane % 16][k % BYTES];
    return c;
}
#define __builtin_amdgcn_mfma_i32_16x16x16i8(a, b, c, x, y, z) emulated_mfma<int>(a, b, c)
#define __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, x, y, z) emulated_mfma<long>(a, b, c)

// WMMA 16x16x16 of gfx11: lane l has a[l % 16][0..15] and b[0..15][l % 16], the upper half of the wave the same as the lower, and
// d[2 r + l / 16][l % 16] in element r.
template <class Operand>
EightSums emulated_wmma(Operand a, Operand b, EightSums c) {
    Brought<16> of_a(&a), of_b(&b);
    unsigned lane = emulated_lane();
    if (memcmp(of_a.of[lane], of_a.of[lane ^ 16], 16) || memcmp(of_b.of[lane], of_b.of[lane ^ 16], 16)) simt::fail();
    for (unsigned r = 0; r < 8; r++)
        for (unsigned k = 0; k < 16; k++) c[r] += of_a.of[2 * r + lane / 16][k] * of_b.of[lane % 16][k];
    return c;
}
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(a_signed, a, b_signed, b, c, clamp) emulated_wmma(a, b, c)

// WMMA 16x16x16 of gfx12: lane l has a[l % 16][k] and b[k][l % 16] for k = 8 (l / 16) and on, and d[8 (l / 16) + r][l % 16] in
// element r.
template <class Operand>
EightSums emulated_wmma_gfx12(Operand a, Operand b, EightSums c) {
    Brought<8> of_a(&a), of_b(&b);
    unsigned lane = emulated_lane();
    for (unsigned r = 0; r < 8; r++)
        for (unsigned k = 0; k < 16; k++)
            c[r] += of_a.of[k / 8 * 16 + lane / 16 * 8 + r][k % 8] * of_b.of[k / 8 * 16 + lane % 16][k % 8];
    return c;
}
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(a_signed, a, b_signed, b, c, clamp) emulated_wmma_gfx12(a, b, c)
