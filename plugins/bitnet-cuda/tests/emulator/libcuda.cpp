// A libcuda.so.1 for tests: the part of the driver API that the plugin uses, with kernels compiled for the CPU.
// Modules are shared objects made by the test's stand-in for NVRTC. Everything runs at once, in the calling thread,
// except while a stream is captured. Copies outside of live allocations are refused.
#include <dlfcn.h>
#include <elf.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "simt.h"
#include "tensor_map.h"

#define API extern "C" __attribute__((visibility("default")))
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500,
       LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900 };
typedef unsigned long long Address;

static const size_t TOTAL = 8ull << 30;
static std::map<Address, size_t> allocations;
static size_t used = 0;
typedef std::function<int()> Action;
static std::vector<Action>* capture = nullptr;

static bool inside(Address p, size_t n) {
    auto next = allocations.upper_bound(p);
    if (next == allocations.begin()) return false;
    auto found = std::prev(next);
    return p + n <= found->first + found->second;
}
static int put(Action action) {
    if (!capture) return action();
    capture->push_back(action);
    return OK;
}

API int cuInit(unsigned) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // freed memory goes back at once, so that leak checks see leaks alone
    return OK;
}
API int cuDriverGetVersion(int* v) { return *v = 13000, OK; }
static int devices() {
    const char* count = getenv("SIMT_DEVICES");
    return count ? atoi(count) : 1;
}
API int cuDeviceGetCount(int* n) { return *n = devices(), OK; }
API int cuDeviceGet(int* d, int i) { return *d = i, i < devices() ? OK : INVALID_DEVICE; }
API int cuDeviceCanAccessPeer(int* can, int one, int other) { return *can = one != other, OK; }
API int cuDeviceGetUuid_v2(char* u, int) { return memset(u, 0xab, 16), OK; }
API int cuDeviceGetName(char* s, int n, int) { return snprintf(s, n, "CPU emulation"), OK; }
API int cuDeviceTotalMem_v2(size_t* n, int) { return *n = TOTAL, OK; }
API int cuDeviceGetPCIBusId(char* s, int n, int d) { return snprintf(s, n, "0000:%02x:00.0", d), OK; }
API int cuDeviceGetAttribute(int* v, int attribute, int) {
    std::map<int, int> known = {{75, 9}, {76, 0}, {16, 1}, {1, 1024}, {10, 32}, {115, 1}, {5, 2147483647}, {6, 65535}, {7, 65535},
                                {39, 2048}};
    return *v = known[attribute], OK;
}
API int cuDevicePrimaryCtxRetain(void** c, int d) { return *c = (void*)(1l + d), OK; }
API int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API int cuCtxSetCurrent(void*) { return OK; }
API int cuStreamCreate(void** s, unsigned) { return *s = (void*)1, OK; }
API int cuStreamDestroy_v2(void*) { return OK; }
API int cuStreamQuery(void*) { return capture ? CAPTURE_UNSUPPORTED : OK; }
static double milliseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
}
API int cuEventCreate(double** e, unsigned) { return *e = new double(0), OK; }
API int cuEventRecord(double* e, void*) {
    return put([=] { return *e = milliseconds(), (int)OK; });
}
API int cuEventRecordWithFlags(double* e, void* stream, unsigned) { return cuEventRecord(e, stream); }
API int cuStreamWaitEvent(void*, double* e, unsigned) { return *e ? OK : INVALID_VALUE; }  // it must be recorded
API int cuEventQuery(double*) { return OK; }
API int cuEventElapsedTime(float* ms, double* first, double* second) { return *ms = *second - *first, OK; }
API int cuEventDestroy_v2(double* e) { return delete e, OK; }

API int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) { return *free_bytes = TOTAL - used, *total = TOTAL, OK; }
API int cuMemAlloc_v2(Address* p, size_t n) {
    if (n == 0) return INVALID_VALUE;
    if (used + n > TOTAL) return OUT_OF_MEMORY;
    void* memory = aligned_alloc(256, (n + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xa5, n);
    *p = (Address)memory;
    allocations[*p] = n;
    used += n;
    return OK;
}
API int cuMemFree_v2(Address p) {
    auto found = allocations.find(p);
    if (found == allocations.end()) return INVALID_VALUE;
    used -= found->second;
    allocations.erase(found);
    free((void*)p);
    return OK;
}
API int cuMemAllocAsync(Address* p, size_t n, void*) { return cuMemAlloc_v2(p, n); }
API int cuMemFreeAsync(Address p, void*) { return cuMemFree_v2(p); }
API int cuMemAllocManaged(Address* p, size_t n, unsigned) { return cuMemAlloc_v2(p, n); }
API int cuMemHostAlloc(void** p, size_t n, unsigned) { return cuMemAlloc_v2((Address*)p, n); }
API int cuMemFreeHost(void* p) { return cuMemFree_v2((Address)p); }
API int cuMemHostGetDevicePointer_v2(Address* d, void* h, unsigned) { return *d = (Address)h, OK; }
API int cuMemsetD8Async(Address p, unsigned char v, size_t n, void*) {
    if (!inside(p, n)) return INVALID_VALUE;
    return put([=] { return memset((void*)p, v, n), (int)OK; });
}
static int copy(Address to, Address from, size_t n) {
    return put([=] { return memmove((void*)to, (void*)from, n), (int)OK; });
}
API int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, void*) {
    return inside(to, n) ? copy(to, (Address)from, n) : INVALID_VALUE;
}
API int cuMemcpyDtoH_v2(void* to, Address from, size_t n) {
    return inside(from, n) ? copy((Address)to, from, n) : INVALID_VALUE;
}
API int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t n, void*) { return cuMemcpyDtoH_v2(to, from, n); }
API int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void*) {
    return inside(from, n) && inside(to, n) ? copy(to, from, n) : INVALID_VALUE;
}

// Copies between devices need the access that a device asked for to the pool of the other.
struct Access {
    int type, id, flags;
};
static std::map<long, std::set<long>> readers;  // device -> devices that may read its pool
API int cuDeviceGetDefaultMemPool(void** pool, int d) { return *pool = (void*)(1l + d), OK; }
API int cuMemPoolSetAccess(void* pool, const Access* access, size_t n) {
    for (size_t i = 0; i < n; i++) readers[(long)pool].insert(1l + access[i].id);
    return OK;
}
API int cuMemcpyPeerAsync(Address to, void* to_context, Address from, void* from_context, size_t n, void* stream) {
    bool may = readers[(long)from_context].count((long)to_context);
    return may ? cuMemcpyDtoDAsync_v2(to, from, n, stream) : INVALID_VALUE;
}

API int cuTensorMapEncodeTiled(TensorMap* map, int, unsigned rank, Address address, const Address* dims,
                               const Address* strides, const unsigned* box, const unsigned*, int, int, int, int) {
    if (rank > 4 || address % 16) return INVALID_VALUE;
    map->address = address, map->rank = rank;
    for (unsigned d = 0; d < rank; d++) map->dims[d] = dims[d], map->box[d] = box[d];
    for (unsigned d = 0; d + 1 < rank; d++)
        if ((map->strides[d] = strides[d]) % 16) return INVALID_VALUE;
    return OK;
}
API int cuModuleLoadData(void** module, const void* image) {
    auto* header = (const Elf64_Ehdr*)image;
    if (memcmp(header->e_ident, ELFMAG, 4) || header->e_machine != EM_X86_64) return INVALID_IMAGE;
    size_t size = header->e_shoff + header->e_shnum * header->e_shentsize;
    char path[] = "/dev/shm/bitnet-kernel-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || write(file, image, size) != (ssize_t)size) return INVALID_IMAGE;
    close(file);
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "%s\n", dlerror());
    unlink(path);
    return *module ? OK : INVALID_IMAGE;
}
API int cuModuleUnload(void*) { return OK; }  // kept: a captured launch may still point into it
API int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = dlsym(module, name) ? module : nullptr;
    return *function ? OK : NOT_FOUND;
}
API int cuFuncSetAttribute(void*, int, int) { return OK; }
// A kernel of 64 registers and 1 KiB of shared memory, on a multiprocessor of 65,536 registers, 228 KiB and 2,048 threads.
API int cuFuncGetAttribute(int* v, int attribute, void*) {
    std::map<int, int> known = {{1, 1024}, {3, 0}, {4, 64}};
    return *v = known[attribute], OK;
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t shared) {
    int by_threads = 2048 / threads, by_registers = 65536 / (64 * threads), by_shared = (228 << 10) / (1024 + shared);
    return *blocks = std::min(std::min(by_threads, by_registers), by_shared), OK;
}
API int cuLaunchKernel(void* module, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void*, void** arguments, void**) {
    if (!gx || !gy || !gz || !bx || bx > 1024 || by != 1 || bz != 1 || shared > 232448 || gy > 65535 || gz > 65535)
        return INVALID_VALUE;
    auto run = (bool (*)(void**, simt::Dim, simt::Dim))dlsym(module, "emulated_run");
    auto sizes_of = (const size_t* (*)(size_t*))dlsym(module, "emulated_sizes");
    size_t count;
    const size_t* sizes = sizes_of(&count);
    std::vector<std::string> kept;
    for (size_t i = 0; i < count; i++) kept.emplace_back((char*)arguments[i], sizes[i]);
    return put([=]() -> int {
        std::vector<std::string> values = kept;
        std::vector<void*> pointers;
        for (std::string& value : values) pointers.push_back(&value[0]);
        return run(pointers.data(), {gx, gy, gz}, {bx, 1, 1}) ? OK : LAUNCH_FAILED;
    });
}
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};
API int cuLaunchKernelEx(const LaunchConfig* c, void* module, void** arguments, void** extra) {
    return cuLaunchKernel(module, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                          c->stream, arguments, extra);
}

API int cuStreamBeginCapture_v2(void*, int) {
    if (capture) return INVALID_VALUE;
    capture = new std::vector<Action>;
    return OK;
}
API int cuStreamEndCapture(void*, void** graph) {
    *graph = capture;
    capture = nullptr;
    return OK;
}
API int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
    return *executable = new std::vector<Action>(*(std::vector<Action>*)graph), OK;
}
API int cuGraphDestroy(void* graph) { return delete (std::vector<Action>*)graph, OK; }
API int cuGraphExecDestroy(void* graph) { return delete (std::vector<Action>*)graph, OK; }
API int cuGraphLaunch(void* graph, void*) {
    for (Action& action : *(std::vector<Action>*)graph)
        if (int status = action()) return status;
    return OK;
}

// Callers ask for names without version suffixes.
API int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, int* found) {
    *function = nullptr;
    for (const char* suffix : {"_v2", ""})
        if (!*function) *function = dlsym(RTLD_DEFAULT, (std::string(name) + suffix).c_str());
    if (!*function) {
        void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        for (const char* suffix : {"_v2", "WithFlags", ""})
            if (!*function) *function = dlsym(self, (std::string(name) + suffix).c_str());
    }
    if (found) *found = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
API int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
