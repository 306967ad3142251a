// A HIP runtime and hipRTC over the CUDA driver and NVRTC: runs bitnet-rocm's host code, through unmodified hip-python,
// and its portable kernels on an NVIDIA GPU. It shows that these are correct and that the host's side is not slow; it
// shows nothing about AMD's compiler, runtime or speed.
//   g++ -std=c++17 -O1 -shared -fPIC -o lib/libamdhip64.so hip_on_cuda.cpp -ldl; ln -s libamdhip64.so lib/libhiprtc.so
// ROCM_PATH is the folder of lib; HIP_ON_CUDA_NVRTC names libnvrtc.so.13 if the loader does not find it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
enum { NO_DEVICE = 100, RTC_INTERNAL = 11 };

static void* cuda() {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    return library;
}
static void* nvrtc() {
    static void* library = dlopen(getenv("HIP_ON_CUDA_NVRTC") ?: "libnvrtc.so.13", RTLD_NOW);
    return library;
}
template <class... A>
static int call(const char* name, A... arguments) {
    auto function = cuda() ? (int (*)(A...))dlsym(cuda(), name) : nullptr;
    return function ? function(arguments...) : NO_DEVICE;
}
template <class... A>
static int compile(const char* name, A... arguments) {
    auto function = nvrtc() ? (int (*)(A...))dlsym(nvrtc(), name) : nullptr;
    return function ? function(arguments...) : RTC_INTERNAL;
}
static int attribute(int which, int device) {
    int value = 0;
    call("cuDeviceGetAttribute", &value, which, device);
    return value;
}

static int current = 0;
static void* contexts[16];
API int hipInit(unsigned flags) { return call("cuInit", flags); }
API int hipGetDeviceCount(int* n) { return call("cuDeviceGetCount", n); }
API int hipSetDevice(int d) {
    if (d < 0 || d >= 16) return 101;
    if (!contexts[d])
        if (int status = call("cuDevicePrimaryCtxRetain", &contexts[d], d)) return status;
    current = d;
    return call("cuCtxSetCurrent", contexts[d]);
}
API int hipRuntimeGetVersion(int* v) { return *v = 70000000, 0; }
API int hipGetDevicePropertiesR0600(char* p, int d) {
    memset(p, 0, 1472);
    call("cuDeviceGetName", p, 256, d);
    call("cuDeviceTotalMem_v2", (size_t*)(p + 288), d);
    *(size_t*)(p + 296) = attribute(8, d);
    *(int*)(p + 308) = 32;
    *(int*)(p + 320) = attribute(1, d);
    int grid[3] = {attribute(5, d), attribute(6, d), attribute(7, d)};
    memcpy(p + 336, grid, sizeof grid);
    *(int*)(p + 388) = attribute(16, d);
    snprintf(p + 1160, 64, "sm_%d%d", attribute(75, d), attribute(76, d));
    return 0;
}
API const char* hipGetErrorString(int status) {
    const char* text = "?";
    call("cuGetErrorString", status, &text);
    return text;
}

API int hipMemGetInfo(size_t* free_bytes, size_t* total) { return call("cuMemGetInfo_v2", free_bytes, total); }
API int hipMalloc(void** p, size_t n) { return call("cuMemAlloc_v2", p, n); }
API int hipFree(void* p) { return call("cuMemFree_v2", p); }
API int hipHostMalloc(void** p, size_t n, unsigned) { return call("cuMemHostAlloc", p, n, 3u); }
API int hipHostFree(void* p) { return call("cuMemFreeHost", p); }
API int hipHostRegister(void* p, size_t n, unsigned) { return call("cuMemHostRegister_v2", p, n, 2u); }
API int hipHostUnregister(void* p) { return call("cuMemHostUnregister", p); }
API int hipHostGetDevicePointer(void** d, void* h, unsigned) { return call("cuMemHostGetDevicePointer_v2", d, h, 0u); }
API int hipMemcpy(void* to, const void* from, size_t n, int) { return call("cuMemcpy", to, from, n); }
API int hipMemcpyAsync(void* to, const void* from, size_t n, int, void* s) { return call("cuMemcpyAsync", to, from, n, s); }
API int hipMemsetAsync(void* p, int v, size_t n, void* s) { return call("cuMemsetD8Async", p, (unsigned char)v, n, s); }

API int hipStreamCreateWithFlags(void** s, unsigned flags) { return call("cuStreamCreate", s, flags); }
API int hipStreamDestroy(void* s) { return call("cuStreamDestroy_v2", s); }
API int hipStreamQuery(void* s) { return call("cuStreamQuery", s); }
API int hipEventCreate(void** e) { return call("cuEventCreate", e, 0u); }
API int hipEventRecord(void* e, void* s) { return call("cuEventRecord", e, s); }
API int hipEventQuery(void* e) { return call("cuEventQuery", e); }
API int hipEventElapsedTime(float* ms, void* first, void* second) { return call("cuEventElapsedTime", ms, first, second); }
API int hipEventDestroy(void* e) { return call("cuEventDestroy_v2", e); }
API int hipStreamBeginCapture(void* s, int mode) { return call("cuStreamBeginCapture_v2", s, mode); }
API int hipStreamEndCapture(void* s, void** graph) { return call("cuStreamEndCapture", s, graph); }
API int hipGraphInstantiateWithFlags(void** x, void* graph, unsigned long long flags) {
    return call("cuGraphInstantiateWithFlags", x, graph, flags);
}
API int hipGraphDestroy(void* graph) { return call("cuGraphDestroy", graph); }
API int hipGraphExecDestroy(void* x) { return call("cuGraphExecDestroy", x); }
API int hipGraphLaunch(void* x, void* s) { return call("cuGraphLaunch", x, s); }

API int hipModuleLoadData(void** module, const void* image) { return call("cuModuleLoadData", module, image); }
API int hipModuleUnload(void* module) { return call("cuModuleUnload", module); }
API int hipModuleGetFunction(void** function, void* module, const char* name) {
    return call("cuModuleGetFunction", function, module, name);
}
// extra ends with 3 in HIP, with 0 in CUDA.
API int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void* stream, void** parameters, void** extra) {
    void* ours[5] = {};
    for (int i = 0; extra && extra[i] != (void*)3 && i < 4; i += 2) ours[i] = extra[i], ours[i + 1] = extra[i + 1];
    return call("cuLaunchKernel", f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra ? ours : nullptr);
}

// hipRTC: definitions of AMD's builtins for NVRTC.
static const char* BUILTINS = R"(
struct Half {
    unsigned short bits;
    __device__ Half() {}
    __device__ Half(float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f)); }
    __device__ operator float() const {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
        return f;
    }
};
#define _Float16 Half
#define __builtin_memcpy(to, from, n) memcpy(to, from, n)
#define __builtin_amdgcn_mbcnt_lo(mask, base) (base)
#define __builtin_amdgcn_mbcnt_hi(mask, base) ((base) + threadIdx.x % 32)
#define __builtin_amdgcn_ds_bpermute(address, value) __shfl_sync(0xffffffffu, value, (address) / 4)
#define __builtin_amdgcn_sdot4(a, b, acc, clamp) __dp4a(a, b, acc)
#define __builtin_amdgcn_sudot4(a_signed, a, b_signed, b, acc, clamp) __dp4a(a, b, acc)
#define __builtin_amdgcn_fence(order, scope) ((void)0)
#define __builtin_amdgcn_wave_barrier() __syncwarp()
#define __builtin_nontemporal_load(p) streamed(p)
#define __GFX11__
template <class T>
__device__ inline T streamed(const T* p) {
    T v;
    asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
)";
API int hiprtcVersion(int* major, int* minor) { return *major = 9, *minor = 0, 0; }
API const char* hiprtcGetErrorString(int) { return "see NVRTC's log"; }
API int hiprtcCreateProgram(void** p, const char* source, const char* name, int, const char**, const char**) {
    std::string text = source;
    const std::string vector = "typedef u32 FourWords __attribute__((ext_vector_type(4)));";
    size_t at = text.find(vector);
    if (at != std::string::npos) text.replace(at, vector.size(), "typedef Words FourWords;");
    text = BUILTINS + text;
    return compile("nvrtcCreateProgram", p, text.c_str(), name, 0, (const char**)nullptr, (const char**)nullptr);
}
API int hiprtcDestroyProgram(void** p) { return compile("nvrtcDestroyProgram", p); }
API int hiprtcCompileProgram(void* p, int, const char**) {
    int capability = 10 * attribute(75, current) + attribute(76, current);
    std::string architecture = "--gpu-architecture=sm_" + std::to_string(capability ? capability : 90);
    const char* options[] = {architecture.c_str(), "--std=c++17", "-default-device"};
    return compile("nvrtcCompileProgram", p, 3, options);
}
API int hiprtcGetProgramLogSize(void* p, size_t* n) { return compile("nvrtcGetProgramLogSize", p, n); }
API int hiprtcGetProgramLog(void* p, char* to) { return compile("nvrtcGetProgramLog", p, to); }
API int hiprtcGetCodeSize(void* p, size_t* n) { return compile("nvrtcGetCUBINSize", p, n); }
API int hiprtcGetCode(void* p, char* to) { return compile("nvrtcGetCUBIN", p, to); }
