// A Level Zero driver for tests: the calls of bitnet-levelzero, carried out by an OpenCL runtime for CPUs that takes SPIR-V.
// The real loader finds it by ZE_ENABLE_ALT_DRIVERS. It is as unkind as a driver may be:
// - new memory is poisoned; pointer arguments and copies must lie in live allocations;
// - lists run only when somebody waits for them, so that what is freed or overwritten too early is missed;
// - of the commands between two barriers the last one runs first;
// - arguments are those at the time of the launch's append; a list must be closed, and is neither reset nor destroyed while
//   it is on its way; a fence or event serves once.
// DRIVER_KEEP_ORDER=1: commands run in order. DRIVER_SYSTEM=1: kernels may read any host memory. DRIVER_DEVICES=id: an integrated
// and a discrete GPU (i where it is not set). DRIVER_TILES=<n>: of each discrete one. DRIVER_FREE=<bytes>: what sysman says of the
// memory of a GPU, or of each tile; there is no sysman without it. DRIVER_FAIL=<function>:<hex>: that function returns that result.
// DRIVER_HANG=1: waits end as NOT_READY. DRIVER_API, DRIVER_SPIRV=<hex>: the versions it claims. What it objects to stands on
// stderr.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <level_zero/zes_api.h>
#include <level_zero/zes_ddi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALL static ze_result_t ZE_APICALL
#define OK ZE_RESULT_SUCCESS
#define FAILS(function) do { ze_result_t wanted = failure(function); if (wanted) return wanted; } while (0)
#define OBJECT(result, ...) return (fprintf(stderr, "driver: " __VA_ARGS__), fputc('\n', stderr), result)

typedef struct memory { char *start; size_t size; struct memory *next; } memory;
typedef struct { int reached; uint64_t begin, end; } event;
typedef struct { cl_program program; } module;
typedef struct { cl_kernel kernel; cl_uint missing; size_t group[3]; } kernel;  // missing: a bit for each argument
typedef enum { BARRIER, COPY, FILL, LAUNCH } operation;
typedef struct {
    operation what;
    char *to;
    const char *from;
    size_t size;
    uint32_t pattern;
    cl_kernel kernel;
    size_t items[3], group[3];
    event *signal;
} command;
typedef struct { command *commands; int count, room, closed, pending; } list;
typedef struct { list *what; event *fence; } sent;
typedef struct { sent *lists; int count, room; ze_result_t failed; } queue;
typedef struct { char *text; } build_log;

static cl_device_id device;
static cl_context context;
static cl_command_queue runner;
static memory *memories;
static int a_driver;
enum { MOST_DEVICES = 4, MOST_TILES = 4 };
typedef struct { int discrete, tile; } gpu;  // tile: -1 for all of it
static gpu gpus[MOST_DEVICES][1 + MOST_TILES];

static ze_result_t failure(const char *function) {
    const char *wanted = getenv("DRIVER_FAIL");
    const size_t length = strlen(function);
    return wanted && !strncmp(wanted, function, length) && wanted[length] == ':' ? strtoul(wanted + length + 1, 0, 16) : OK;
}

static int asked(const char *name) { return getenv(name) && *getenv(name) == '1'; }
static uint64_t number(const char *name, uint64_t missing) { return getenv(name) ? strtoull(getenv(name), 0, 0) : missing; }

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static size_t device_number(cl_device_info what) {
    size_t value = 0;
    char bytes[64] = {0};
    clGetDeviceInfo(device, what, sizeof bytes, bytes, 0);
    memcpy(&value, bytes, sizeof value);
    return value;
}

// ---- driver and device ----
CALL init(ze_init_flags_t flags) {
    cl_platform_id platforms[8];
    cl_uint count = 0;
    FAILS("zeInit");
    if (context) return OK;
    if (clGetPlatformIDs(8, platforms, &count)) return ZE_RESULT_ERROR_UNINITIALIZED;
    for (cl_uint i = 0; i < count && !context; ++i) {
        cl_int error;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_CPU, 1, &device, 0)) continue;
        context = clCreateContext(0, 1, &device, 0, 0, &error);
        runner = clCreateCommandQueueWithProperties(context, device, 0, &error);
    }
    return context ? OK : ZE_RESULT_ERROR_UNINITIALIZED;
}
CALL driver_get(uint32_t *count, ze_driver_handle_t *drivers) {
    if (*count && drivers) drivers[0] = (void *)&a_driver;
    *count = 1;
    return OK;
}
CALL driver_version(ze_driver_handle_t driver, ze_api_version_t *version) {
    *version = (ze_api_version_t)number("DRIVER_API", ZE_API_VERSION_1_3);
    return OK;
}
CALL driver_properties(ze_driver_handle_t driver, ze_driver_properties_t *properties) {
    memset(&properties->uuid, 0x5a, sizeof properties->uuid);
    properties->driverVersion = 7;
    return OK;
}
CALL driver_extensions(ze_driver_handle_t driver, uint32_t *count, ze_driver_extension_properties_t *properties) {
    *count = 0;
    return OK;
}
CALL driver_function(ze_driver_handle_t driver, const char *name, void **function) {
    return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
CALL device_get(ze_driver_handle_t driver, uint32_t *count, ze_device_handle_t *devices) {
    FAILS("zeDeviceGet");
    const char *kinds = getenv("DRIVER_DEVICES") ? getenv("DRIVER_DEVICES") : "i";
    for (uint32_t i = 0; devices && i < *count; ++i) {
        gpus[i][0] = (gpu){kinds[i] == 'd', -1};
        devices[i] = (void *)gpus[i];
    }
    *count = (uint32_t)strlen(kinds);
    return OK;
}
static uint32_t tiles_of(const gpu *whole) {
    return whole->discrete && whole->tile < 0 ? (uint32_t)number("DRIVER_TILES", 0) : 0;
}
CALL device_parts(ze_device_handle_t handle, uint32_t *count, ze_device_handle_t *parts) {
    gpu *whole = (gpu *)handle;
    for (uint32_t i = 0; parts && i < *count; ++i) {
        whole[1 + i] = (gpu){1, (int)i};
        parts[i] = (void *)&whole[1 + i];
    }
    *count = tiles_of(whole);
    return OK;
}
CALL device_properties(ze_device_handle_t handle, ze_device_properties_t *p) {
    p->type = ZE_DEVICE_TYPE_GPU;
    p->vendorId = 0x8086;
    p->deviceId = 0x5690;
    const gpu *one = (gpu *)handle;
    p->flags = one->tile >= 0 ? ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE : one->discrete ? 0 : ZE_DEVICE_PROPERTY_FLAG_INTEGRATED;
    p->subdeviceId = one->tile >= 0 ? (uint32_t)one->tile : 0;
    p->maxMemAllocSize = device_number(CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    p->numEUsPerSubslice = p->numSubslicesPerSlice = 1;
    p->numSlices = (uint32_t)device_number(CL_DEVICE_MAX_COMPUTE_UNITS);
    p->timerResolution = 1;
    p->timestampValidBits = p->kernelTimestampValidBits = 64;
    snprintf(p->name, sizeof p->name, "test driver of bitnet-levelzero");
    return OK;
}
CALL device_compute(ze_device_handle_t handle, ze_device_compute_properties_t *p) {
    p->maxTotalGroupSize = p->maxGroupSizeX = p->maxGroupSizeY = p->maxGroupSizeZ = 512;
    p->maxGroupCountX = p->maxGroupCountY = p->maxGroupCountZ = 1 << 20;
    p->maxSharedLocalMemory = 65536;
    p->numSubGroupSizes = 2;
    p->subGroupSizes[0] = 8;
    p->subGroupSizes[1] = 16;
    return OK;
}
CALL device_module(ze_device_handle_t handle, ze_device_module_properties_t *p) {
    p->spirvVersionSupported = (uint32_t)number("DRIVER_SPIRV", ZE_MAKE_VERSION(1, 2));
    p->maxArgumentsSize = 1024;
    return OK;
}
CALL device_groups(ze_device_handle_t handle, uint32_t *count, ze_command_queue_group_properties_t *p) {
    if (p && *count > 0) p[0].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY, p[0].numQueues = 1;
    if (p && *count > 1) p[1].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE, p[1].numQueues = 1;
    *count = 2;
    return OK;
}
CALL device_memory(ze_device_handle_t handle, uint32_t *count, ze_device_memory_properties_t *p) {
    if (p && *count) p->totalSize = device_number(CL_DEVICE_GLOBAL_MEM_SIZE);
    *count = 1;
    return OK;
}
CALL device_access(ze_device_handle_t handle, ze_device_memory_access_properties_t *p) {
    p->sharedSystemAllocCapabilities = asked("DRIVER_SYSTEM") ? ZE_MEMORY_ACCESS_CAP_FLAG_RW : 0;
    return OK;
}
CALL device_pci(ze_device_handle_t handle, ze_pci_ext_properties_t *p) {
    p->address = (ze_pci_address_ext_t){0, 3, 0, 0};
    return OK;
}
CALL device_status(ze_device_handle_t handle) { return OK; }
CALL context_create(ze_driver_handle_t driver, const ze_context_desc_t *desc, ze_context_handle_t *made) {
    *made = (void *)&context;
    return OK;
}
CALL context_destroy(ze_context_handle_t handle) { return OK; }
CALL context_status(ze_context_handle_t handle) { return OK; }

// ---- sysman: a module of memory for a GPU, or for each of its tiles; its handle is that of the GPU or tile ----
CALL memory_modules(zes_device_handle_t handle, uint32_t *count, zes_mem_handle_t *modules) {
    gpu *whole = (gpu *)handle;
    const uint32_t tiles = tiles_of(whole);
    if (!getenv("DRIVER_FREE")) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    for (uint32_t i = 0; modules && i < *count; ++i) modules[i] = (void *)&whole[tiles ? 1 + i : 0];
    *count = tiles ? tiles : 1;
    return OK;
}
CALL memory_module(zes_mem_handle_t handle, zes_mem_properties_t *p) {
    const gpu *one = (gpu *)handle;
    p->onSubdevice = one->tile >= 0;
    p->subdeviceId = one->tile >= 0 ? (uint32_t)one->tile : 0;
    return OK;
}
CALL memory_state(zes_mem_handle_t handle, zes_mem_state_t *state) {
    state->free = number("DRIVER_FREE", 0);
    return OK;
}

// ---- memory: shared virtual memory, so that a pointer is valid for host and kernels alike ----
static memory *memory_of(const void *pointer, size_t size) {
    for (memory *one = memories; one; one = one->next)
        if ((char *)pointer >= one->start && (char *)pointer + size <= one->start + one->size) return one;
    return 0;
}
static ze_result_t allocate(size_t size, size_t alignment, void **made) {
    FAILS("zeMemAlloc");
    if (!size || size > device_number(CL_DEVICE_MAX_MEM_ALLOC_SIZE)) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    char *start = clSVMAlloc(context, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, size, (cl_uint)alignment);
    if (!start) return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    memset(start, 0xa5, size);
    memory *one = malloc(sizeof *one);
    *one = (memory){start, size, memories};
    memories = one;
    *made = start;
    return OK;
}
CALL memory_device(ze_context_handle_t c, const ze_device_mem_alloc_desc_t *d, size_t size, size_t alignment,
                   ze_device_handle_t handle, void **made) { return allocate(size, alignment, made); }
CALL memory_host(ze_context_handle_t c, const ze_host_mem_alloc_desc_t *d, size_t size, size_t alignment, void **made) {
    return allocate(size, alignment, made);
}
CALL memory_shared(ze_context_handle_t c, const ze_device_mem_alloc_desc_t *d, const ze_host_mem_alloc_desc_t *h, size_t size,
                   size_t alignment, ze_device_handle_t handle, void **made) { return allocate(size, alignment, made); }
CALL memory_free(ze_context_handle_t c, void *pointer) {
    for (memory **at = &memories; *at; at = &(*at)->next)
        if ((*at)->start == pointer) {
            memory *gone = *at;
            *at = gone->next;
            clSVMFree(context, pointer);
            free(gone);
            return OK;
        }
    OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "free of %p, which is not allocated", pointer);
}

// ---- modules and kernels ----
// Where the instructions of a SPIR-V module do not follow each other up to its end, 0 where they do: the runtime below crashes on
// what a driver would refuse.
static size_t broken_at(const uint8_t *input, size_t size) {
    const uint32_t *words = (const uint32_t *)input;
    size_t at = 5;
    while (at < size / 4 && words[at] >> 16) at += words[at] >> 16;
    return at == size / 4 && words[0] == 0x07230203 ? 0 : at;
}
static void *log_of(const char *text, size_t at) {
    build_log *one = malloc(sizeof *one);
    one->text = calloc(1, strlen(text) + 80);
    sprintf(one->text, at ? "word %zu: %s" : "%.0zu%s", at, text);
    return one;
}
CALL module_create(ze_context_handle_t c, ze_device_handle_t d, const ze_module_desc_t *desc, ze_module_handle_t *made,
                   ze_module_build_log_handle_t *log) {
    cl_int error, status;
    size_t size = 0;
    const uint8_t *input = desc->pInputModule;
    const int spirv = desc->format == ZE_MODULE_FORMAT_IL_SPIRV;
    const size_t broken = spirv ? broken_at(input, desc->inputSize) : 0;
    if (broken && log) *log = log_of("an instruction without a length", broken);
    if (broken) return ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
    cl_program program = spirv
                             ? clCreateProgramWithIL(context, input, desc->inputSize, &error)
                             : clCreateProgramWithBinary(context, 1, &device, &desc->inputSize, &input, &status, &error);
    if (error) return ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    error = clBuildProgram(program, 1, &device, "", 0, 0);
    clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, 0, &size);
    char *text = calloc(1, size + 1);
    clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, text, 0);
    if (log) *log = log_of(text, 0);
    free(text);
    if (error) {
        clReleaseProgram(program);
        return ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
    }
    module *one = malloc(sizeof *one);
    one->program = program;
    *made = (void *)one;
    return OK;
}
CALL module_destroy(ze_module_handle_t handle) {
    clReleaseProgram(((module *)handle)->program);
    free(handle);
    return OK;
}
CALL module_binary(ze_module_handle_t handle, size_t *size, uint8_t *binary) {
    if (!binary) return clGetProgramInfo(((module *)handle)->program, CL_PROGRAM_BINARY_SIZES, sizeof *size, size, 0);
    return clGetProgramInfo(((module *)handle)->program, CL_PROGRAM_BINARIES, sizeof binary, &binary, 0);
}
CALL log_destroy(ze_module_build_log_handle_t handle) {
    free(((build_log *)handle)->text);
    free(handle);
    return OK;
}
CALL log_text(ze_module_build_log_handle_t handle, size_t *size, char *text) {
    const size_t length = strlen(((build_log *)handle)->text) + 1;
    if (text) memcpy(text, ((build_log *)handle)->text, *size < length ? *size : length);
    *size = length;
    return OK;
}
CALL kernel_create(ze_module_handle_t handle, const ze_kernel_desc_t *desc, ze_kernel_handle_t *made) {
    cl_int error;
    kernel *one = calloc(1, sizeof *one);
    one->kernel = clCreateKernel(((module *)handle)->program, desc->pKernelName, &error);
    if (error) OBJECT(ZE_RESULT_ERROR_INVALID_KERNEL_NAME, "no kernel %s", desc->pKernelName);
    cl_uint arguments;
    clGetKernelInfo(one->kernel, CL_KERNEL_NUM_ARGS, sizeof arguments, &arguments, 0);
    one->missing = (1u << arguments) - 1;
    *made = (void *)one;
    return OK;
}
CALL kernel_destroy(ze_kernel_handle_t handle) {
    clReleaseKernel(((kernel *)handle)->kernel);
    free(handle);
    return OK;
}
CALL kernel_group(ze_kernel_handle_t handle, uint32_t x, uint32_t y, uint32_t z) {
    kernel *one = (kernel *)handle;
    one->group[0] = x;
    one->group[1] = y;
    one->group[2] = z;
    return OK;
}
CALL kernel_argument(ze_kernel_handle_t handle, uint32_t index, size_t size, const void *value) {
    kernel *one = (kernel *)handle;
    void *pointer;
    cl_int error;
    if (size == sizeof pointer) {  // no parameter has eight bytes
        memcpy(&pointer, value, size);
        if (!memory_of(pointer, 1) && !asked("DRIVER_SYSTEM"))
            OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "argument %u: %p is not allocated", index, pointer);
        error = clSetKernelArgSVMPointer(one->kernel, index, pointer);
    } else
        error = clSetKernelArg(one->kernel, index, size, value);
    one->missing &= ~(1u << index);
    return error ? ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE : OK;
}

// ---- command lists ----
CALL list_create(ze_context_handle_t c, ze_device_handle_t d, const ze_command_list_desc_t *desc,
                 ze_command_list_handle_t *made) {
    if (desc->commandQueueGroupOrdinal != 1) OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "a list for queues that do not compute");
    *made = calloc(1, sizeof(list));
    return OK;
}
static void empty(list *one) {
    for (int i = 0; i < one->count; ++i)
        if (one->commands[i].kernel) clReleaseKernel(one->commands[i].kernel);
    one->count = one->closed = 0;
}
CALL list_destroy(ze_command_list_handle_t handle) {
    list *one = (list *)handle;
    if (one->pending) OBJECT(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, "a list is destroyed on its way");
    empty(one);
    free(one->commands);
    free(one);
    return OK;
}
CALL list_close(ze_command_list_handle_t handle) {
    ((list *)handle)->closed = 1;
    return OK;
}
CALL list_reset(ze_command_list_handle_t handle) {
    if (((list *)handle)->pending) OBJECT(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, "a list is reset on its way");
    empty((list *)handle);
    return OK;
}
static ze_result_t append(ze_command_list_handle_t handle, command what) {
    list *one = (list *)handle;
    if (one->closed) OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "a command for a closed list");
    if (one->count == one->room) one->commands = realloc(one->commands, (one->room = 2 * one->room + 16) * sizeof what);
    one->commands[one->count++] = what;
    return OK;
}
CALL append_barrier(ze_command_list_handle_t handle, ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
    return append(handle, (command){.what = BARRIER});
}
CALL append_copy(ze_command_list_handle_t handle, void *to, const void *from, size_t size, ze_event_handle_t signal,
                 uint32_t count, ze_event_handle_t *waits) {
    return append(handle, (command){.what = COPY, .to = to, .from = from, .size = size, .signal = (event *)signal});
}
CALL append_fill(ze_command_list_handle_t handle, void *to, const void *pattern, size_t width, size_t size,
                 ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
    if (width != 4 || size % 4) OBJECT(ZE_RESULT_ERROR_INVALID_SIZE, "a fill of %zu bytes by %zu", size, width);
    uint32_t value;
    memcpy(&value, pattern, 4);
    return append(handle, (command){.what = FILL, .to = to, .size = size, .pattern = value, .signal = (event *)signal});
}
CALL append_launch(ze_command_list_handle_t handle, ze_kernel_handle_t of, const ze_group_count_t *groups,
                   ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
    kernel *one = (kernel *)of;
    cl_int error;
    if (!one->group[0]) OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "a launch before zeKernelSetGroupSize");
    if (one->missing) OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "a launch without all arguments");
    command what = {.what = LAUNCH, .signal = (event *)signal, .kernel = clCloneKernel(one->kernel, &error)};
    if (error) OBJECT(ZE_RESULT_ERROR_UNKNOWN, "a kernel is not cloned: %d", error);
    memcpy(what.group, one->group, sizeof what.group);
    const uint32_t counts[3] = {groups->groupCountX, groups->groupCountY, groups->groupCountZ};
    for (int i = 0; i < 3; ++i) what.items[i] = counts[i] * one->group[i];
    return append(handle, what);
}

// ---- execution, when somebody waits ----
static ze_result_t carry_out(command *one) {
    cl_int error = 0;
    const uint64_t begin = nanoseconds();
    if (one->what == COPY) {
        if (!memory_of(one->to, one->size) || !memory_of(one->from, one->size))
            OBJECT(ZE_RESULT_ERROR_DEVICE_LOST, "a copy of %zu bytes that leaves its allocation", one->size);
        memcpy(one->to, one->from, one->size);
    } else if (one->what == FILL) {
        if (!memory_of(one->to, one->size)) OBJECT(ZE_RESULT_ERROR_DEVICE_LOST, "a fill that leaves its allocation");
        for (size_t i = 0; i < one->size; i += 4) memcpy(one->to + i, &one->pattern, 4);
    } else if (one->what == LAUNCH) {
        error = clEnqueueNDRangeKernel(runner, one->kernel, 3, 0, one->items, one->group, 0, 0, 0);
        if (!error) error = clFinish(runner);
        if (error) OBJECT(ZE_RESULT_ERROR_DEVICE_LOST, "a launch fails with %d", error);
    }
    if (one->signal && one->signal->reached) OBJECT(ZE_RESULT_ERROR_DEVICE_LOST, "an event is signalled twice");
    if (one->signal) *one->signal = (event){1, begin, nanoseconds()};
    return OK;
}
static ze_result_t run(list *what) {
    for (int begin = 0, end; begin < what->count; begin = end + 1) {
        for (end = begin; end < what->count && what->commands[end].what != BARRIER;) ++end;
        for (int i = 0; i < end - begin; ++i) {
            const int at = asked("DRIVER_KEEP_ORDER") ? begin + i : end - 1 - i;
            const ze_result_t result = carry_out(&what->commands[at]);
            if (result) return result;
        }
    }
    return OK;
}
static ze_result_t drain(queue *one) {
    for (int i = 0; i < one->count; ++i) {
        if (!one->failed) one->failed = run(one->lists[i].what);
        --one->lists[i].what->pending;
        if (one->lists[i].fence) one->lists[i].fence->reached = 1;
    }
    one->count = 0;
    return one->failed;
}
static queue *last_queue;  // of a fence: there is one queue at a time
CALL queue_create(ze_context_handle_t c, ze_device_handle_t d, const ze_command_queue_desc_t *desc,
                  ze_command_queue_handle_t *made) {
    if (desc->ordinal != 1) OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "a queue that does not compute");
    *made = calloc(1, sizeof(queue));
    return OK;
}
CALL queue_destroy(ze_command_queue_handle_t handle) {
    if (((queue *)handle)->count) OBJECT(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, "a queue is destroyed with work in it");
    free(((queue *)handle)->lists);
    free(handle);
    return OK;
}
CALL queue_execute(ze_command_queue_handle_t handle, uint32_t count, ze_command_list_handle_t *lists, ze_fence_handle_t fence) {
    queue *one = (queue *)handle;
    FAILS("zeCommandQueueExecuteCommandLists");
    if (fence && ((event *)fence)->begin++) OBJECT(ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT, "a fence is used twice");
    last_queue = one;
    for (uint32_t i = 0; i < count; ++i) {
        list *what = (list *)lists[i];
        if (!what->closed) OBJECT(ZE_RESULT_ERROR_INVALID_ARGUMENT, "a list is executed before it is closed");
        if (one->count == one->room) one->lists = realloc(one->lists, (one->room = 2 * one->room + 16) * sizeof(sent));
        one->lists[one->count++] = (sent){what, i + 1 == count ? (event *)fence : 0};
        ++what->pending;
    }
    return OK;
}
CALL queue_synchronize(ze_command_queue_handle_t handle, uint64_t timeout) {
    FAILS("zeCommandQueueSynchronize");
    return asked("DRIVER_HANG") ? ZE_RESULT_NOT_READY : drain((queue *)handle);
}
CALL fence_create(ze_command_queue_handle_t handle, const ze_fence_desc_t *desc, ze_fence_handle_t *made) {
    *made = calloc(1, sizeof(event));
    return OK;
}
CALL fence_destroy(ze_fence_handle_t handle) {
    free(handle);
    return OK;
}
CALL fence_synchronize(ze_fence_handle_t handle, uint64_t timeout) {
    if (asked("DRIVER_HANG")) return ZE_RESULT_NOT_READY;
    const ze_result_t result = last_queue ? drain(last_queue) : OK;
    return result ? result : ((event *)handle)->reached ? OK : ZE_RESULT_NOT_READY;
}
CALL pool_create(ze_context_handle_t c, const ze_event_pool_desc_t *desc, uint32_t count, ze_device_handle_t *devices,
                 ze_event_pool_handle_t *made) {
    *made = calloc(desc->count, sizeof(event));
    return OK;
}
CALL pool_destroy(ze_event_pool_handle_t handle) {
    free(handle);
    return OK;
}
CALL event_create(ze_event_pool_handle_t pool, const ze_event_desc_t *desc, ze_event_handle_t *made) {
    *made = (void *)((event *)pool + desc->index);
    return OK;
}
CALL event_destroy(ze_event_handle_t handle) { return OK; }
CALL event_times(ze_event_handle_t handle, ze_kernel_timestamp_result_t *times) {
    const event *one = (event *)handle;
    if (!one->reached) OBJECT(ZE_RESULT_NOT_READY, "the times of an event that was not reached");
    times->global.kernelStart = times->context.kernelStart = one->begin;
    times->global.kernelEnd = times->context.kernelEnd = one->end;
    return OK;
}

// ---- tables: the loader takes all of them; those that nobody here calls are in tables.c ----
#define TABLE_OF(API, NAME, TYPE, ...)                                                                \
    ZE_DLLEXPORT ze_result_t ZE_APICALL API##Get##NAME##ProcAddrTable(ze_api_version_t v, TYPE *table) { \
        *table = (TYPE){__VA_ARGS__};                                                                 \
        return OK;                                                                                    \
    }
#define TABLE(NAME, TYPE, ...) TABLE_OF(ze, NAME, TYPE, __VA_ARGS__)
TABLE(Global, ze_global_dditable_t, .pfnInit = init)
TABLE(Driver, ze_driver_dditable_t, .pfnGet = driver_get, .pfnGetApiVersion = driver_version,
      .pfnGetProperties = driver_properties, .pfnGetExtensionProperties = driver_extensions,
      .pfnGetExtensionFunctionAddress = driver_function)
TABLE(Device, ze_device_dditable_t, .pfnGet = device_get, .pfnGetSubDevices = device_parts,
      .pfnGetProperties = device_properties, .pfnGetComputeProperties = device_compute,
      .pfnGetModuleProperties = device_module, .pfnGetCommandQueueGroupProperties = device_groups,
      .pfnGetMemoryProperties = device_memory, .pfnGetMemoryAccessProperties = device_access, .pfnGetStatus = device_status,
      .pfnPciGetPropertiesExt = device_pci)
TABLE(Context, ze_context_dditable_t, .pfnCreate = context_create, .pfnDestroy = context_destroy,
      .pfnGetStatus = context_status)
TABLE(CommandQueue, ze_command_queue_dditable_t, .pfnCreate = queue_create, .pfnDestroy = queue_destroy,
      .pfnExecuteCommandLists = queue_execute, .pfnSynchronize = queue_synchronize)
TABLE(CommandList, ze_command_list_dditable_t, .pfnCreate = list_create, .pfnDestroy = list_destroy, .pfnClose = list_close,
      .pfnReset = list_reset, .pfnAppendBarrier = append_barrier, .pfnAppendMemoryCopy = append_copy,
      .pfnAppendMemoryFill = append_fill, .pfnAppendLaunchKernel = append_launch)
TABLE(Event, ze_event_dditable_t, .pfnCreate = event_create, .pfnDestroy = event_destroy, .pfnQueryKernelTimestamp = event_times)
TABLE(EventPool, ze_event_pool_dditable_t, .pfnCreate = pool_create, .pfnDestroy = pool_destroy)
TABLE(Fence, ze_fence_dditable_t, .pfnCreate = fence_create, .pfnDestroy = fence_destroy,
      .pfnHostSynchronize = fence_synchronize)
TABLE(Kernel, ze_kernel_dditable_t, .pfnCreate = kernel_create, .pfnDestroy = kernel_destroy,
      .pfnSetGroupSize = kernel_group, .pfnSetArgumentValue = kernel_argument)
TABLE(Mem, ze_mem_dditable_t, .pfnAllocShared = memory_shared, .pfnAllocDevice = memory_device,
      .pfnAllocHost = memory_host, .pfnFree = memory_free)
TABLE(Module, ze_module_dditable_t, .pfnCreate = module_create, .pfnDestroy = module_destroy,
      .pfnGetNativeBinary = module_binary)
TABLE(ModuleBuildLog, ze_module_build_log_dditable_t, .pfnDestroy = log_destroy, .pfnGetString = log_text)
TABLE_OF(zes, Device, zes_device_dditable_t, .pfnEnumMemoryModules = memory_modules)
TABLE_OF(zes, Memory, zes_memory_dditable_t, .pfnGetProperties = memory_module, .pfnGetState = memory_state)
