// Warpgroup products (compute capability 9.0 alone, compiled for sm_90a): the four warps of a warpgroup multiply 64
// weight rows, in registers, by COLUMNS tokens (SPAN_T unless defined), in shared memory, asynchronously.
#include "warpgroup_group.cuh"
#ifndef COLUMNS
#define COLUMNS SPAN_T
#endif
#define A4(i) "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3])
#define A16(i) A4(i), A4(i + 4), A4(i + 8), A4(i + 12)

// c[64 x COLUMNS] = (add ? c : 0) + a[64 x 32] (CODE: "u8" or "s8") * tokens[COLUMNS x 128][columns 32 plane..] (s8).
// Rows have 128 bytes, 16-byte words swizzled by row (the 128-byte mode), and start aligned to 1024 bytes. a and c in
// the layout of mma.m16n8k32 for each warp.
__device__ inline void warpgroup_mma(int* c, const u32* a, const Words* tokens, u32 plane, bool add) {
    // start address, (unused) leading offset, 1024 bytes between groups of eight rows, all in 16 bytes; 128-byte mode
    unsigned long long descriptor = (shared_address(tokens) + 32 * plane) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
#if COLUMNS == 8
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %9, 0;"
        "wgmma.mma_async.sync.aligned.m64n8k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3},"
        "{%4, %5, %6, %7}, %8, p;}"
        : A4(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#elif COLUMNS == 16
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %13, 0;"
        "wgmma.mma_async.sync.aligned.m64n16k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7},"
        "{%8, %9, %10, %11}, %12, p;}"
        : A4(0), A4(4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#elif COLUMNS == 32
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %21, 0;"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
        "{%16, %17, %18, %19}, %20, p;}"
        : A16(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#elif COLUMNS == 64
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
        "{%32, %33, %34, %35}, %36, p;}"
        : A16(0), A16(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#elif COLUMNS == 96
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %53, 0;"
        "wgmma.mma_async.sync.aligned.m64n96k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47},"
        "{%48, %49, %50, %51}, %52, p;}"
        : A16(0), A16(16), A16(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#elif COLUMNS == 128
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"
        "{%64, %65, %66, %67}, %68, p;}"
        : A16(0), A16(16), A16(32), A16(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %133, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k32.s32." CODE ".s8 {"
        " %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
        " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
        " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
        " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111,"
        " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127},"
        "{%128, %129, %130, %131}, %132, p;}"
        : A16(0), A16(16), A16(32), A16(48), A16(64), A16(80), A16(96), A16(112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"((int)add));
#endif
}
