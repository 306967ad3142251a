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
#include "driver.h"

cl_device_id device;
cl_context context;
cl_command_queue runner;
static int a_driver;
enum { MOST_DEVICES = 4, MOST_TILES = 4 };
typedef struct { int discrete, tile; } gpu;  // tile: -1 for all of it
static gpu gpus[MOST_DEVICES][1 + MOST_TILES];

ze_result_t failure(const char *function) {
    const char *wanted = getenv("DRIVER_FAIL");
    const size_t length = strlen(function);
    return wanted && !strncmp(wanted, function, length) && wanted[length] == ':' ? strtoul(wanted + length + 1, 0, 16) : OK;
}

int asked(const char *name) { return getenv(name) && *getenv(name) == '1'; }
uint64_t number(const char *name, uint64_t missing) { return getenv(name) ? strtoull(getenv(name), 0, 0) : missing; }

size_t device_number(cl_device_info what) {
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

// Temperatures of the GPU and of its memory, and a clock of the GPU; that of the memory is unknown. Handles are their numbers.
CALL sensors(zes_device_handle_t handle, uint32_t *count, void **made) {
    if (!asked("DRIVER_SENSORS")) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    for (uint32_t i = 0; made && i < *count; ++i) made[i] = (void *)(uintptr_t)(1 + i);
    *count = 2;
    return OK;
}
CALL temperature_sensors(zes_device_handle_t handle, uint32_t *count, zes_temp_handle_t *made) {
    return sensors(handle, count, (void **)made);
}
CALL frequency_domains(zes_device_handle_t handle, uint32_t *count, zes_freq_handle_t *made) {
    return sensors(handle, count, (void **)made);
}
CALL temperature_kind(zes_temp_handle_t handle, zes_temp_properties_t *p) {
    p->type = (uintptr_t)handle == 1 ? ZES_TEMP_SENSORS_GPU : ZES_TEMP_SENSORS_MEMORY;
    return OK;
}
CALL temperature(zes_temp_handle_t handle, double *celsius) {
    *celsius = (uintptr_t)handle == 1 ? 61 : 75;
    return OK;
}
CALL frequency_kind(zes_freq_handle_t handle, zes_freq_properties_t *p) {
    p->type = (uintptr_t)handle == 1 ? ZES_FREQ_DOMAIN_GPU : ZES_FREQ_DOMAIN_MEMORY;
    return OK;
}
CALL frequency(zes_freq_handle_t handle, zes_freq_state_t *state) {
    state->actual = (uintptr_t)handle == 1 ? 2050 : -1;
    return OK;
}

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
TABLE_OF(zes, Device, zes_device_dditable_t, .pfnEnumMemoryModules = memory_modules,
         .pfnEnumTemperatureSensors = temperature_sensors, .pfnEnumFrequencyDomains = frequency_domains)
TABLE_OF(zes, Temperature, zes_temperature_dditable_t, .pfnGetProperties = temperature_kind, .pfnGetState = temperature)
TABLE_OF(zes, Frequency, zes_frequency_dditable_t, .pfnGetProperties = frequency_kind, .pfnGetState = frequency)
TABLE_OF(zes, Memory, zes_memory_dditable_t, .pfnGetProperties = memory_module, .pfnGetState = memory_state)
