// Warpgroup products of signed bytes (compute capability 9.0 alone), both factors in shared memory.
#include "warpgroup_group.cuh"
#define A4(i) "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3])
#define A8(i) A4(i), A4(i + 4)
#define A24(i) A8(i), A8(i + 8), A8(i + 16)

// c[64 x COLUMNS] = (add ? c : 0) + a[64 x 32] * b[COLUMNS x 32]: bytes offset.. of rows of 128 bytes in the 128-byte
// mode, aligned to 1024 bytes. c in the layout of mma.m16n8k32 for each warp.
__device__ inline void warpgroup_mma_bytes(int* c, const Words* a, const Words* b, u32 offset, bool add) {
    // start address, (unused) leading offset, 1024 bytes between groups of eight rows, all in 16 bytes; 128-byte mode
    const unsigned long long mode = 1ull << 16 | 64ull << 32 | 1ull << 62;
    unsigned long long first = (shared_address(a) + offset) >> 4 | mode, second = (shared_address(b) + offset) >> 4 | mode;
#if COLUMNS == 24
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %14, 0;"
        "wgmma.mma_async.sync.aligned.m64n24k32.s32.s8.s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, %12, %13, p;}"
        : A8(0), A4(8)
        : "l"(first), "l"(second), "r"((int)add));
#elif COLUMNS == 48
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %26, 0;"
        "wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23}, %24, %25, p;}"
        : A24(0)
        : "l"(first), "l"(second), "r"((int)add));
#else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %50, 0;"
        "wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, %48, %49, p;}"
        : A24(0), A24(24)
        : "l"(first), "l"(second), "r"((int)add));
#endif
}
