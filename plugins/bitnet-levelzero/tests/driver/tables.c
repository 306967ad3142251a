// The tables of calls that bitnet-levelzero does not make. The loader wants every one that its own version knows, and is content
// with an empty one; without the headers, as the tables' types do not matter.
#define NONE(NAME) unsigned NAME##ProcAddrTable(unsigned version, void *table) { return 0; }
NONE(zeGetDeviceExp) NONE(zeGetImage) NONE(zeGetImageExp) NONE(zeGetKernelExp) NONE(zeGetPhysicalMem) NONE(zeGetSampler)
NONE(zeGetVirtualMem) NONE(zeGetFabricEdgeExp) NONE(zeGetFabricVertexExp) NONE(zeGetEventExp) NONE(zeGetDriverExp)
NONE(zeGetMemExp) NONE(zeGetCommandListExp)
NONE(zesGetDiagnostics) NONE(zesGetDriver) NONE(zesGetEngine) NONE(zesGetFabricPort) NONE(zesGetFan)
NONE(zesGetFirmware) NONE(zesGetLed) NONE(zesGetPerformanceFactor) NONE(zesGetPower)
NONE(zesGetPsu) NONE(zesGetRas) NONE(zesGetScheduler) NONE(zesGetStandby) NONE(zesGetGlobal)
NONE(zesGetDeviceExp) NONE(zesGetOverclock)
NONE(zetGetCommandList) NONE(zetGetContext) NONE(zetGetDebug) NONE(zetGetDevice) NONE(zetGetKernel) NONE(zetGetMetricGroupExp)
NONE(zetGetMetricGroup) NONE(zetGetMetric) NONE(zetGetMetricQueryPool) NONE(zetGetMetricQuery) NONE(zetGetMetricStreamer)
NONE(zetGetModule) NONE(zetGetTracerExp)
