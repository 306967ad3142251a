// Command lists, queues, fences and events of the test driver.
#include "driver.h"
#include <time.h>

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
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
    FAILS("zeFenceHostSynchronize");
    if (asked("DRIVER_HANG")) return ZE_RESULT_NOT_READY;
    const ze_result_t result = last_queue ? drain(last_queue) : OK;
    return result ? result : ((event *)handle)->reached ? OK : ZE_RESULT_NOT_READY;
}
CALL fence_reset(ze_fence_handle_t handle) {
    if (!((event *)handle)->reached) OBJECT(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, "a fence is reset before it is reached");
    *(event *)handle = (event){0};
    return OK;
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

TABLE(CommandQueue, ze_command_queue_dditable_t, .pfnCreate = queue_create, .pfnDestroy = queue_destroy,
      .pfnExecuteCommandLists = queue_execute, .pfnSynchronize = queue_synchronize)
TABLE(CommandList, ze_command_list_dditable_t, .pfnCreate = list_create, .pfnDestroy = list_destroy, .pfnClose = list_close,
      .pfnReset = list_reset, .pfnAppendBarrier = append_barrier, .pfnAppendMemoryCopy = append_copy,
      .pfnAppendMemoryFill = append_fill, .pfnAppendLaunchKernel = append_launch)
TABLE(Event, ze_event_dditable_t, .pfnCreate = event_create, .pfnDestroy = event_destroy, .pfnQueryKernelTimestamp = event_times)
TABLE(EventPool, ze_event_pool_dditable_t, .pfnCreate = pool_create, .pfnDestroy = pool_destroy)
TABLE(Fence, ze_fence_dditable_t, .pfnCreate = fence_create, .pfnDestroy = fence_destroy,
      .pfnHostSynchronize = fence_synchronize, .pfnReset = fence_reset)
