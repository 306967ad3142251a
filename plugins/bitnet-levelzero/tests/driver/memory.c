// Memory, modules and kernels of the test driver.
#include "driver.h"

static memory *memories;

// ---- memory: shared virtual memory, so that a pointer is valid for host and kernels alike ----
memory *memory_of(const void *pointer, size_t size) {
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
// The runtime's optimizer takes a second of processor time for each of the 42 programs of this kernel, which no test runs often.
static const char *options_for(const uint8_t *input, size_t size) {
    static const char slow[] = "matmul_ternary_block";
    for (size_t at = 0; at + sizeof slow <= size; at += 4)  // names stand at whole words
        if (!memcmp(input + at, slow, sizeof slow)) return "-cl-opt-disable";
    return "";
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
    error = clBuildProgram(program, 1, &device, spirv ? options_for(input, desc->inputSize) : "", 0, 0);
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
CALL kernel_properties(ze_kernel_handle_t handle, ze_kernel_properties_t *p) {
    p->requiredSubgroupSize = 0;
    p->maxSubgroupSize = 16;
    p->localMemSize = 1024;
    p->privateMemSize = 64;
    p->spillMemSize = 32;
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

TABLE(Kernel, ze_kernel_dditable_t, .pfnCreate = kernel_create, .pfnDestroy = kernel_destroy,
      .pfnGetProperties = kernel_properties, .pfnSetGroupSize = kernel_group, .pfnSetArgumentValue = kernel_argument)
TABLE(Mem, ze_mem_dditable_t, .pfnAllocShared = memory_shared, .pfnAllocDevice = memory_device,
      .pfnAllocHost = memory_host, .pfnFree = memory_free)
TABLE(Module, ze_module_dditable_t, .pfnCreate = module_create, .pfnDestroy = module_destroy,
      .pfnGetNativeBinary = module_binary)
TABLE(ModuleBuildLog, ze_module_build_log_dditable_t, .pfnDestroy = log_destroy, .pfnGetString = log_text)
