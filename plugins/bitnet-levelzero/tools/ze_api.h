/* The part of Level Zero that this backend calls, as in Intel's ze_api.h and zes_api.h (1.3, MIT license), for cffi.
   Enumerations and flags are uint32_t; addresses of memory are numbers. */

typedef void *ze_driver_handle_t;
typedef void *ze_device_handle_t;
typedef void *zes_device_handle_t;
typedef void *zes_mem_handle_t;
typedef void *zes_temp_handle_t;
typedef void *zes_freq_handle_t;
typedef void *ze_context_handle_t;
typedef void *ze_command_queue_handle_t;
typedef void *ze_command_list_handle_t;
typedef void *ze_fence_handle_t;
typedef void *ze_event_handle_t;
typedef void *ze_kernel_handle_t;
typedef void *ze_event_pool_handle_t;
typedef void *ze_module_handle_t;
typedef void *ze_module_build_log_handle_t;

typedef enum {
    ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES = 0x1,
    ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES = 0x3,
    ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES = 0x4,
    ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES = 0x5,
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES = 0x6,
    ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES = 0x7,
    ZE_STRUCTURE_TYPE_DEVICE_MEMORY_ACCESS_PROPERTIES = 0x8,
    ZE_STRUCTURE_TYPE_CONTEXT_DESC = 0xd,
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC = 0xe,
    ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC = 0xf,
    ZE_STRUCTURE_TYPE_EVENT_POOL_DESC = 0x10,
    ZE_STRUCTURE_TYPE_EVENT_DESC = 0x11,
    ZE_STRUCTURE_TYPE_FENCE_DESC = 0x12,
    ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC = 0x15,
    ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC = 0x16,
    ZE_STRUCTURE_TYPE_MODULE_DESC = 0x1b,
    ZE_STRUCTURE_TYPE_KERNEL_DESC = 0x1d,
    ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES = 0x1e,
    ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES = 0x10008,
} ze_structure_type_t;

typedef enum {
    ZES_STRUCTURE_TYPE_FREQ_PROPERTIES = 0x9,
    ZES_STRUCTURE_TYPE_MEM_PROPERTIES = 0xb,
    ZES_STRUCTURE_TYPE_TEMP_PROPERTIES = 0x14,
    ZES_STRUCTURE_TYPE_FREQ_STATE = 0x1b,
    ZES_STRUCTURE_TYPE_MEM_STATE = 0x1e,
} zes_structure_type_t;

typedef struct {
    uint8_t id[16];
} ze_driver_uuid_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    ze_driver_uuid_t uuid;
    uint32_t driverVersion;
} ze_driver_properties_t;

typedef struct {
    uint8_t id[16];
} ze_device_uuid_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t type;
    uint32_t vendorId;
    uint32_t deviceId;
    uint32_t flags;
    uint32_t subdeviceId;
    uint32_t coreClockRate;
    uint64_t maxMemAllocSize;
    uint32_t maxHardwareContexts;
    uint32_t maxCommandQueuePriority;
    uint32_t numThreadsPerEU;
    uint32_t physicalEUSimdWidth;
    uint32_t numEUsPerSubslice;
    uint32_t numSubslicesPerSlice;
    uint32_t numSlices;
    uint64_t timerResolution;
    uint32_t timestampValidBits;
    uint32_t kernelTimestampValidBits;
    ze_device_uuid_t uuid;
    char name[256];
} ze_device_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t maxTotalGroupSize;
    uint32_t maxGroupSizeX;
    uint32_t maxGroupSizeY;
    uint32_t maxGroupSizeZ;
    uint32_t maxGroupCountX;
    uint32_t maxGroupCountY;
    uint32_t maxGroupCountZ;
    uint32_t maxSharedLocalMemory;
    uint32_t numSubGroupSizes;
    uint32_t subGroupSizes[8];
} ze_device_compute_properties_t;

typedef struct {
    uint8_t id[16];
} ze_native_kernel_uuid_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t spirvVersionSupported;
    uint32_t flags;
    uint32_t fp16flags;
    uint32_t fp32flags;
    uint32_t fp64flags;
    uint32_t maxArgumentsSize;
    uint32_t printfBufferSize;
    ze_native_kernel_uuid_t nativeKernelSupported;
} ze_device_module_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
    uint32_t maxClockRate;
    uint32_t maxBusWidth;
    uint64_t totalSize;
    char name[256];
} ze_device_memory_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t hostAllocCapabilities;
    uint32_t deviceAllocCapabilities;
    uint32_t sharedSingleDeviceAllocCapabilities;
    uint32_t sharedCrossDeviceAllocCapabilities;
    uint32_t sharedSystemAllocCapabilities;
} ze_device_memory_access_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
    size_t maxMemoryFillPatternSize;
    uint32_t numQueues;
} ze_command_queue_group_properties_t;

typedef struct {
    uint32_t domain;
    uint32_t bus;
    uint32_t device;
    uint32_t function;
} ze_pci_address_ext_t;

typedef struct {
    int32_t genVersion;
    int32_t width;
    int64_t maxBandwidth;
} ze_pci_speed_ext_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    ze_pci_address_ext_t address;
    ze_pci_speed_ext_t maxSpeed;
} ze_pci_ext_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t type;
    uint8_t onSubdevice;
    uint32_t subdeviceId;
    uint32_t location;
    uint64_t physicalSize;
    int32_t busWidth;
    int32_t numChannels;
} zes_mem_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t health;
    uint64_t free;
    uint64_t size;
} zes_mem_state_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t type;
    uint8_t onSubdevice;
    uint32_t subdeviceId;
    double maxTemperature;
    uint8_t isCriticalTempSupported;
    uint8_t isThreshold1Supported;
    uint8_t isThreshold2Supported;
} zes_temp_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t type;
    uint8_t onSubdevice;
    uint32_t subdeviceId;
    uint8_t canControl;
    uint8_t isThrottleEventSupported;
    double min;
    double max;
} zes_freq_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    double currentVoltage;
    double request;
    double tdp;
    double efficient;
    double actual;
    uint32_t throttleReasons;
} zes_freq_state_t;

typedef struct {
    uint8_t kid[16];
    uint8_t mid[16];
} ze_kernel_uuid_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t numKernelArgs;
    uint32_t requiredGroupSizeX;
    uint32_t requiredGroupSizeY;
    uint32_t requiredGroupSizeZ;
    uint32_t requiredNumSubGroups;
    uint32_t requiredSubgroupSize;
    uint32_t maxSubgroupSize;
    uint32_t maxNumSubgroups;
    uint32_t localMemSize;
    uint32_t privateMemSize;
    uint32_t spillMemSize;
    ze_kernel_uuid_t uuid;
} ze_kernel_properties_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
} ze_context_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t ordinal;
    uint32_t index;
    uint32_t flags;
    uint32_t mode;
    uint32_t priority;
} ze_command_queue_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t commandQueueGroupOrdinal;
    uint32_t flags;
} ze_command_list_desc_t;

typedef struct {
    uint32_t groupCountX;
    uint32_t groupCountY;
    uint32_t groupCountZ;
} ze_group_count_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
} ze_fence_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
    uint32_t count;
} ze_event_pool_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t index;
    uint32_t signal;
    uint32_t wait;
} ze_event_desc_t;

typedef struct {
    uint64_t kernelStart;
    uint64_t kernelEnd;
} ze_kernel_timestamp_data_t;

typedef struct {
    ze_kernel_timestamp_data_t global;
    ze_kernel_timestamp_data_t context;
} ze_kernel_timestamp_result_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
    uint32_t ordinal;
} ze_device_mem_alloc_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
} ze_host_mem_alloc_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t format;
    size_t inputSize;
    uint8_t *pInputModule;
    char *pBuildFlags;
    void *pConstants;
} ze_module_desc_t;

typedef struct {
    uint32_t stype;
    void *pNext;
    uint32_t flags;
    char *pKernelName;
} ze_kernel_desc_t;

uint32_t zeInit(uint32_t flags);
uint32_t zeDriverGet(uint32_t *pCount, ze_driver_handle_t *phDrivers);
uint32_t zeDriverGetApiVersion(ze_driver_handle_t hDriver, uint32_t *version);
uint32_t zeDriverGetProperties(ze_driver_handle_t hDriver, ze_driver_properties_t *pDriverProperties);
uint32_t zeDeviceGet(ze_driver_handle_t hDriver, uint32_t *pCount, ze_device_handle_t *phDevices);
uint32_t zeDeviceGetSubDevices(ze_device_handle_t hDevice, uint32_t *pCount, ze_device_handle_t *phSubdevices);
uint32_t zeDeviceGetProperties(ze_device_handle_t hDevice, ze_device_properties_t *pDeviceProperties);
uint32_t zeDeviceGetComputeProperties(ze_device_handle_t hDevice, ze_device_compute_properties_t *pComputeProperties);
uint32_t zeDeviceGetModuleProperties(ze_device_handle_t hDevice, ze_device_module_properties_t *pModuleProperties);
uint32_t zeDeviceGetMemoryProperties(ze_device_handle_t hDevice, uint32_t *pCount,
    ze_device_memory_properties_t *pMemProperties);
uint32_t zeDeviceGetMemoryAccessProperties(ze_device_handle_t hDevice,
    ze_device_memory_access_properties_t *pMemAccessProperties);
uint32_t zeDeviceGetCommandQueueGroupProperties(ze_device_handle_t hDevice, uint32_t *pCount,
    ze_command_queue_group_properties_t *pCommandQueueGroupProperties);
uint32_t zeDevicePciGetPropertiesExt(ze_device_handle_t hDevice, ze_pci_ext_properties_t *pPciProperties);
uint32_t zesDeviceEnumMemoryModules(zes_device_handle_t hDevice, uint32_t *pCount, zes_mem_handle_t *phMemory);
uint32_t zesMemoryGetProperties(zes_mem_handle_t hMemory, zes_mem_properties_t *pProperties);
uint32_t zesMemoryGetState(zes_mem_handle_t hMemory, zes_mem_state_t *pState);
uint32_t zesDeviceEnumTemperatureSensors(zes_device_handle_t hDevice, uint32_t *pCount, zes_temp_handle_t *phTemperature);
uint32_t zesTemperatureGetProperties(zes_temp_handle_t hTemperature, zes_temp_properties_t *pProperties);
uint32_t zesTemperatureGetState(zes_temp_handle_t hTemperature, double *pTemperature);
uint32_t zesDeviceEnumFrequencyDomains(zes_device_handle_t hDevice, uint32_t *pCount, zes_freq_handle_t *phFrequency);
uint32_t zesFrequencyGetProperties(zes_freq_handle_t hFrequency, zes_freq_properties_t *pProperties);
uint32_t zesFrequencyGetState(zes_freq_handle_t hFrequency, zes_freq_state_t *pState);
uint32_t zeContextCreate(ze_driver_handle_t hDriver, ze_context_desc_t *desc, ze_context_handle_t *phContext);
uint32_t zeContextDestroy(ze_context_handle_t hContext);
uint32_t zeCommandQueueCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice,
    ze_command_queue_desc_t *desc, ze_command_queue_handle_t *phCommandQueue);
uint32_t zeCommandQueueDestroy(ze_command_queue_handle_t hCommandQueue);
uint32_t zeCommandQueueExecuteCommandLists(ze_command_queue_handle_t hCommandQueue, uint32_t numCommandLists,
    ze_command_list_handle_t *phCommandLists, ze_fence_handle_t hFence);
uint32_t zeCommandListCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice, ze_command_list_desc_t *desc,
    ze_command_list_handle_t *phCommandList);
uint32_t zeCommandListDestroy(ze_command_list_handle_t hCommandList);
uint32_t zeCommandListClose(ze_command_list_handle_t hCommandList);
uint32_t zeCommandListReset(ze_command_list_handle_t hCommandList);
uint32_t zeCommandListAppendBarrier(ze_command_list_handle_t hCommandList, ze_event_handle_t hSignalEvent,
    uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents);
uint32_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t hCommandList, uintptr_t dstptr, uintptr_t srcptr,
    size_t size, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents, ze_event_handle_t *phWaitEvents);
uint32_t zeCommandListAppendMemoryFill(ze_command_list_handle_t hCommandList, uintptr_t ptr, void *pattern,
    size_t pattern_size, size_t size, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
    ze_event_handle_t *phWaitEvents);
uint32_t zeCommandListAppendLaunchKernel(ze_command_list_handle_t hCommandList, ze_kernel_handle_t hKernel,
    ze_group_count_t *pLaunchFuncArgs, ze_event_handle_t hSignalEvent, uint32_t numWaitEvents,
    ze_event_handle_t *phWaitEvents);
uint32_t zeFenceCreate(ze_command_queue_handle_t hCommandQueue, ze_fence_desc_t *desc, ze_fence_handle_t *phFence);
uint32_t zeFenceDestroy(ze_fence_handle_t hFence);
uint32_t zeFenceReset(ze_fence_handle_t hFence);
uint32_t zeFenceHostSynchronize(ze_fence_handle_t hFence, uint64_t timeout);
uint32_t zeEventPoolCreate(ze_context_handle_t hContext, ze_event_pool_desc_t *desc, uint32_t numDevices,
    ze_device_handle_t *phDevices, ze_event_pool_handle_t *phEventPool);
uint32_t zeEventPoolDestroy(ze_event_pool_handle_t hEventPool);
uint32_t zeEventCreate(ze_event_pool_handle_t hEventPool, ze_event_desc_t *desc, ze_event_handle_t *phEvent);
uint32_t zeEventDestroy(ze_event_handle_t hEvent);
uint32_t zeEventQueryKernelTimestamp(ze_event_handle_t hEvent, ze_kernel_timestamp_result_t *dstptr);
uint32_t zeMemAllocDevice(ze_context_handle_t hContext, ze_device_mem_alloc_desc_t *device_desc, size_t size,
    size_t alignment, ze_device_handle_t hDevice, uintptr_t *pptr);
uint32_t zeMemAllocHost(ze_context_handle_t hContext, ze_host_mem_alloc_desc_t *host_desc, size_t size,
    size_t alignment, uintptr_t *pptr);
uint32_t zeMemAllocShared(ze_context_handle_t hContext, ze_device_mem_alloc_desc_t *device_desc,
    ze_host_mem_alloc_desc_t *host_desc, size_t size, size_t alignment, ze_device_handle_t hDevice, uintptr_t *pptr);
uint32_t zeMemFree(ze_context_handle_t hContext, uintptr_t ptr);
uint32_t zeModuleCreate(ze_context_handle_t hContext, ze_device_handle_t hDevice, ze_module_desc_t *desc,
    ze_module_handle_t *phModule, ze_module_build_log_handle_t *phBuildLog);
uint32_t zeModuleDestroy(ze_module_handle_t hModule);
uint32_t zeModuleGetNativeBinary(ze_module_handle_t hModule, size_t *pSize, uint8_t *pModuleNativeBinary);
uint32_t zeModuleBuildLogGetString(ze_module_build_log_handle_t hModuleBuildLog, size_t *pSize, char *pBuildLog);
uint32_t zeModuleBuildLogDestroy(ze_module_build_log_handle_t hModuleBuildLog);
uint32_t zeKernelCreate(ze_module_handle_t hModule, ze_kernel_desc_t *desc, ze_kernel_handle_t *phKernel);
uint32_t zeKernelDestroy(ze_kernel_handle_t hKernel);
uint32_t zeKernelGetProperties(ze_kernel_handle_t hKernel, ze_kernel_properties_t *pKernelProperties);
uint32_t zeKernelSetGroupSize(ze_kernel_handle_t hKernel, uint32_t groupSizeX, uint32_t groupSizeY,
    uint32_t groupSizeZ);
uint32_t zeKernelSetArgumentValue(ze_kernel_handle_t hKernel, uint32_t argIndex, size_t argSize, void *pArgValue);
