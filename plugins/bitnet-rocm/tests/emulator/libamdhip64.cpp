// A HIP runtime and hipRTC for tests: the part that the plugin uses, with kernels compiled for the CPU by clang++-19. Everything
// runs at once, in the calling thread, except while a stream is captured. Copies and fills outside of live allocations, kernels
// whose threads part ways at a barrier, and frees of what is not allocated are errors.
// HIP_ON_CPU_GFX: what the GPU is (gfx1100); those of gfx9 have waves of 64 threads, others of 32. HIP_ON_CPU_INTEGRATED=1: an APU. HIP_ON_CPU_NO_GRAPHS=1: capture is refused.
// HIP_ON_CPU_FLAGS: the compiler's, with hip_on_cpu.h among what is included. HIP_ON_CPU_KEPT: a folder for what it made. HIP_ON_CPU_ERROR: the hipError_t that hipInit gives.
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
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_BINARY = 209, NOT_FOUND = 500,
       LAUNCH_FAILURE = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900 };
struct Dim {
    unsigned x, y, z;
};
typedef std::function<int()> Action;
typedef std::vector<Action> Graph;

static const size_t TOTAL = 8ull << 30;
static std::map<char*, size_t> allocations;
static size_t used = 0;
static Graph* capture = nullptr;

static int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static bool inside(const void* p, size_t n) {
    auto next = allocations.upper_bound((char*)p);
    if (next == allocations.begin()) return false;
    auto found = std::prev(next);
    return (char*)p + n <= found->first + found->second;
}
static int put(Action action) {
    if (!capture) return action();
    capture->push_back(action);
    return OK;
}

API int hipInit(unsigned) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // freed memory goes back at once, so that leak checks see leaks alone
    return setting("HIP_ON_CPU_ERROR", OK);
}
API int hipGetDeviceCount(int* n) { return *n = 1, OK; }
API int hipSetDevice(int d) { return d ? INVALID_DEVICE : OK; }
API int hipRuntimeGetVersion(int* v) { return *v = 70000000, OK; }
// Offsets of hipDeviceProp_t as of ROCm 6, which the test checks against hip-python's.
API int hipGetDevicePropertiesR0600(char* p, int d) {
    if (d) return INVALID_DEVICE;
    const char* gfx = getenv("HIP_ON_CPU_GFX") ?: "gfx1100";
    memset(p, 0, 1472);
    strcpy(p, "HIP on a CPU");
    *(size_t*)(p + 288) = TOTAL;
    *(size_t*)(p + 296) = 65536;
    *(int*)(p + 308) = strncmp(gfx, "gfx9", 4) ? 32 : 64;
    *(int*)(p + 320) = 1024;
    int grid[3] = {2147483647, 65536, 65536};
    memcpy(p + 336, grid, sizeof grid);
    *(int*)(p + 388) = 8;
    *(int*)(p + 396) = setting("HIP_ON_CPU_INTEGRATED", 0);
    strcpy(p + 1160, gfx);
    return OK;
}
API const char* hipGetErrorString(int) { return "an error of the emulated runtime"; }

API int hipMemGetInfo(size_t* free_bytes, size_t* total) { return *free_bytes = TOTAL - used, *total = TOTAL, OK; }
API int hipMalloc(void** p, size_t n) {
    if (n == 0) return INVALID_VALUE;
    if (used + n > TOTAL || !(*p = aligned_alloc(256, (n + 255) / 256 * 256))) return OUT_OF_MEMORY;
    memset(*p, 0xa5, n);
    allocations[(char*)*p] = n;
    used += n;
    return OK;
}
API int hipFree(void* p) {
    auto found = allocations.find((char*)p);
    if (found == allocations.end()) return INVALID_VALUE;
    used -= found->second;
    allocations.erase(found);
    free(p);
    return OK;
}
API int hipHostMalloc(void** p, size_t n, unsigned) { return hipMalloc(p, n); }
API int hipHostFree(void* p) { return hipFree(p); }
API int hipHostRegister(void* p, size_t n, unsigned) { return allocations[(char*)p] = n, OK; }
API int hipHostUnregister(void* p) { return allocations.erase((char*)p) ? OK : INVALID_VALUE; }
API int hipHostGetDevicePointer(void** d, void* h, unsigned) { return *d = h, OK; }
static int copy(void* to, const void* from, size_t n, int kind) {  // 1 to the device, 2 from it, 3 on it
    if ((kind != 2 && !inside(to, n)) || (kind != 1 && !inside(from, n))) return INVALID_VALUE;
    memmove(to, from, n);
    return OK;
}
API int hipMemcpy(void* to, const void* from, size_t n, int kind) { return copy(to, from, n, kind); }
API int hipMemcpyAsync(void* to, const void* from, size_t n, int kind, void*) {
    return put([=] { return copy(to, from, n, kind); });
}
API int hipMemsetAsync(void* p, int v, size_t n, void*) {
    return put([=]() -> int { return inside(p, n) ? (memset(p, v, n), OK) : INVALID_VALUE; });
}

API int hipStreamCreateWithFlags(void** s, unsigned) { return *s = malloc(1), OK; }
API int hipStreamDestroy(void* s) { return free(s), OK; }
API int hipStreamQuery(void*) { return capture ? CAPTURE_UNSUPPORTED : OK; }
static double milliseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
}
API int hipEventCreate(double** e) { return *e = new double(0), OK; }
API int hipEventRecord(double* e, void*) {
    return put([=] { return *e = milliseconds(), (int)OK; });
}
API int hipEventQuery(double*) { return OK; }
API int hipEventElapsedTime(float* ms, double* first, double* second) { return *ms = *second - *first, OK; }
API int hipEventDestroy(double* e) { return delete e, OK; }

API int hipStreamBeginCapture(void*, int) {
    if (setting("HIP_ON_CPU_NO_GRAPHS", 0)) return NOT_SUPPORTED;
    if (capture) return INVALID_VALUE;
    capture = new Graph;
    return OK;
}
API int hipStreamEndCapture(void*, Graph** graph) { return *graph = capture, capture = nullptr, OK; }
API int hipGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    return *executable = new Graph(*graph), OK;
}
API int hipGraphDestroy(Graph* graph) { return delete graph, OK; }
API int hipGraphExecDestroy(Graph* graph) { return delete graph, OK; }
API int hipGraphLaunch(Graph* graph, void*) {
    for (Action& action : *graph)
        if (int status = action()) return status;
    return OK;
}

API int hipModuleLoadData(void** module, const void* image) {
    auto* header = (const Elf64_Ehdr*)image;
    if (memcmp(header->e_ident, ELFMAG, 4) || header->e_machine != EM_X86_64) return NO_BINARY;
    size_t size = header->e_shoff + header->e_shnum * header->e_shentsize;
    char path[] = "/dev/shm/bitnet-kernel-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || write(file, image, size) != (ssize_t)size) return NO_BINARY;
    close(file);
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "%s\n", dlerror());
    unlink(path);
    return *module ? OK : NO_BINARY;
}
API int hipModuleUnload(void*) { return OK; }  // kept: a captured launch may still point into it
API int hipModuleGetFunction(void** function, void* module, const char* name) {
    *function = dlsym(module, (std::string("emulated_") + name).c_str());
    return *function ? OK : NOT_FOUND;
}
// extra: (1, packed arguments), (2, their size), 3.
API int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void*, void** parameters, void** extra) {
    if (!gx || !gy || !gz || !bx || bx > 1024 || by != 1 || bz != 1 || shared > 65536 || parameters || !extra)
        return INVALID_VALUE;
    std::string packed;
    for (char *data = nullptr, **at = (char**)extra; *at != (char*)3; at += 2)
        if (*at == (char*)1) data = at[1];
        else packed.assign(data, *(size_t*)at[1]);
    packed.append(64, '\0');
    return put([=]() -> int {
        std::string arguments = packed;
        auto run = (bool (*)(char*, Dim, Dim))function;
        return run(&arguments[0], {gx, gy, gz}, {bx, 1, 1}) ? OK : LAUNCH_FAILURE;
    });
}

// hipRTC.
enum { RTC_OK = 0, RTC_OUT_OF_MEMORY = 1, RTC_INVALID_OPTION = 5, RTC_COMPILATION = 6 };
struct Program {
    std::string source, name, log, code;
};
static std::string contents(const std::string& path) {
    std::string text;
    if (FILE* file = fopen(path.c_str(), "rb")) {
        char buffer[1 << 16];
        while (size_t n = fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
        fclose(file);
    }
    return text;
}
API int hiprtcVersion(int* major, int* minor) { return *major = 9, *minor = 0, RTC_OK; }
API const char* hiprtcGetErrorString(int) { return "an error of the emulated hipRTC"; }
API int hiprtcCreateProgram(Program** p, const char* source, const char* name, int, const char**, const char**) {
    return *p = new Program{source, name, "", ""}, RTC_OK;
}
API int hiprtcDestroyProgram(Program** p) { return delete *p, *p = nullptr, RTC_OK; }
// Only matrix cores differ between architectures here, so other kernels are compiled once for all. What is compiled is kept.
static std::string kept_at(const std::string& kernel, const std::string& source, const std::string& architecture) {
    const char* folder = getenv("HIP_ON_CPU_KEPT");
    size_t name = std::hash<std::string>()(architecture + " " + kernel + " " + source);
    return std::string(folder ? folder : "/tmp") + "/hip-on-cpu-" + std::to_string(name);
}
API int hiprtcCompileProgram(Program* p, int count, const char** options) {
    std::string architecture, kernel = p->name.substr(0, p->name.find('.'));
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "--offload-arch=", 15)) architecture = std::string(options[i] + 15);
    architecture = architecture.substr(0, architecture.find(':'));
    if (architecture.rfind("gfx", 0)) return RTC_INVALID_OPTION;
    if (p->source.find("__builtin_amdgcn_wmma") == std::string::npos) architecture = "gfx1100";
    std::string kept = kept_at(kernel, p->source, architecture), here = kept + "-" + std::to_string(gettid());
    if (!(p->code = contents(kept)).empty()) return RTC_OK;
    FILE* file = fopen((here + ".cpp").c_str(), "w");
    if (!file) return RTC_OUT_OF_MEMORY;
    fprintf(file, "%s\nEMULATE(%s)\n", p->source.c_str(), kernel.c_str());
    fclose(file);
    const char* flags = getenv("HIP_ON_CPU_FLAGS");
    std::string command = "clang++-19 -shared " + std::string(flags ? flags : "") + " -D__" + architecture + "__ -D__GFX" +
                          architecture.substr(3, architecture.size() - 5) + "__ -o " + here + " " + here + ".cpp 2> " + here + ".log";
    int status = system(command.c_str());
    p->log = contents(here + ".log");
    for (const char* end : {".cpp", ".log"}) unlink((here + end).c_str());
    if (status) return RTC_COMPILATION;
    p->code = contents(here);
    rename(here.c_str(), kept.c_str());
    return RTC_OK;
}
API int hiprtcGetProgramLogSize(Program* p, size_t* n) { return *n = p->log.size() + 1, RTC_OK; }
API int hiprtcGetProgramLog(Program* p, char* to) { return strcpy(to, p->log.c_str()), RTC_OK; }
API int hiprtcGetCodeSize(Program* p, size_t* n) { return *n = p->code.size(), RTC_OK; }
API int hiprtcGetCode(Program* p, char* to) { return memcpy(to, p->code.data(), p->code.size()), RTC_OK; }
