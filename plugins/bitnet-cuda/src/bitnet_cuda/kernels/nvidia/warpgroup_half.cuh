// Warpgroup products of f16 (compute capability 9.0 alone): 64 rows in registers by 64, 96 or 128 columns in shared memory.
#include "warpgroup_group.cuh"
#define F4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)

// c[64 x 64] = (add ? c : 0) + a[64 x 16] * b[16 x 64], f32 sums; a and c in the layout of mma.m16n8k16 for each warp.
// b lies in rows of 128 bytes in the 128-byte mode, aligned to 1024 bytes: a row for each of its columns, used from
// byte `offset` on (TRANSPOSED 0), or for each of its rows, offset bytes further on (TRANSPOSED 1).
template <int TRANSPOSED>
__device__ inline void warpgroup_mma_half(float* c, const u32* a, const Words* b, u32 offset, bool add) {
    unsigned long long descriptor = (shared_address(b) + offset) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
        : F16(0), F16(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add), "n"(TRANSPOSED));
}
// c[64 x ROWS], not transposed: ROWS rows of b, 96 or 128.
template <int ROWS>
__device__ inline void warpgroup_mma_half_rows(float* c, const u32* a, const Words* b, u32 offset, bool add) {
    static_assert(ROWS == 96 || ROWS == 128, "there are products of 96 and 128 rows");
    unsigned long long descriptor = (shared_address(b) + offset) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    if constexpr (ROWS == 128)
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %69, 0;"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
            " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
            " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
            " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
            " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"
            "{%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
            : F16(0), F16(16), F16(32), F16(48)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
    else
        asm volatile(
            "{.reg .pred p; setp.ne.b32 p, %53, 0;"
            "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
            " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
            " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
            " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47},"
            "{%48, %49, %50, %51}, %52, p, 1, 1, 0;}"
            : F16(0), F16(16), F16(32)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
}
